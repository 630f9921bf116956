/* Files: mapped in; out whole or not at all. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "unit.h"

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

static const char *path_of(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void assert_content(const char *name, const char *want) {
  FileMap *f;
  assert_ok(file_map(path_of(name), &f));
  assert_int_equal(f->size, strlen(want));
  if (f->size) assert_memory_equal(f->data, want, f->size);
  file_map_unref(f);
}

static int count_files(void) {
  DIR *d = opendir(folder);
  int n = 0;
  assert_non_null(d);
  while (readdir(d)) n++;
  closedir(d);
  return n - 2;
}

static void maps(void **state) {
  (void)state;
  FileMap *f;
  assert_error(file_map(path_of("absent"), &f), "No such file");
  assert_error(file_map(folder, &f), "folder");
  assert_error(file_map("/dev/null", &f), "not a regular file");
  assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
  assert_error(file_map(path_of("pipe"), &f), "not a regular file");
  assert_int_equal(unlink(path_of("pipe")), 0);
  assert_ok(file_write_all(path_of("empty"), NULL, 0, 0));
  assert_content("empty", "");
  assert_ok(file_write_all(path_of("full"), "hello", 5, FILE_SYNC));
  assert_ok(file_map(path_of("full"), &f));
  f->data[0] = 'j'; /* private: stays here */
  file_map_unref(f);
  assert_content("full", "hello");
  unlink(path_of("empty")), unlink(path_of("full"));
}

static void never_overwrites_unasked(void **state) {
  (void)state;
  assert_ok(file_write_all(path_of("a"), "one", 3, 0));
  Status s = file_write_all(path_of("a"), "two", 3, 0);
  assert_int_equal(status_code(s), ERR_USAGE);
  assert_error(s, "is there already");
  assert_content("a", "one");
  assert_ok(file_write_all(path_of("a"), "three", 5, FILE_OVERWRITE));
  assert_content("a", "three");
  /* Someone else takes the name while we write. */
  FileOut f;
  assert_ok(file_out_open(&f, path_of("b"), 0));
  assert_ok(file_write_all(path_of("b"), "theirs", 6, 0));
  assert_ok(file_out_write(&f, "ours", 4));
  assert_error(file_out_commit(&f), "is there already");
  assert_content("b", "theirs");
  assert_int_equal(count_files(), 2);
  unlink(path_of("a")), unlink(path_of("b"));
}

static void discarded(void **state) {
  (void)state;
  FileOut f = {0};
  file_out_discard(&f);
  assert_ok(file_out_open(&f, path_of("c"), 0));
  assert_ok(file_out_write(&f, "x", 1));
  /* Killed now, we would leave nothing behind (where the file system can do that). */
  assert_int_equal(count_files(), f.unnamed ? 0 : 1);
  file_out_discard(&f);
  assert_int_equal(count_files(), 0);
  assert_error(file_out_open(&f, path_of("no/such/folder"), 0), "No such file");
  assert_error(file_out_open(&f, folder, FILE_OVERWRITE), "folder");
  assert_error(file_out_open(&f, "", 0), "empty");
}

static void large_and_padded(void **state) {
  (void)state;
  FileOut f;
  FileMap *m;
  size_t n = 3 << 20;
  char *block = malloc(n);
  assert_non_null(block);
  memset(block, 'z', n);
  assert_ok(file_out_open(&f, path_of("d"), 0));
  for (int i = 0; i < 1000; i++) assert_ok(file_out_write(&f, "abc", 3));
  assert_ok(file_out_pad(&f, 1000, ' '));
  assert_int_equal(f.written, 4000);
  assert_ok(file_out_write(&f, block, n));
  assert_ok(file_out_write(&f, "e", 1));
  assert_int_equal(f.written, 4001 + n);
  assert_ok(file_out_commit(&f));
  assert_ok(file_map(path_of("d"), &m));
  assert_int_equal(m->size, 4001 + n);
  assert_memory_equal(m->data + 2997, "abc   ", 6);
  assert_int_equal(m->data[4000 + n], 'e');
  file_map_unref(m);
  free(block);
  unlink(path_of("d"));
}

/* A file may not grow beyond 1 MB here: what a full disk looks like to write(). */
static void full_disk(void **state) {
  (void)state;
  struct rlimit old, small;
  FileOut f;
  static char block[400000];
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  small = old;
  small.rlim_cur = 1000000;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  assert_ok(file_write_all(path_of("e"), "old", 3, 0));
  assert_ok(file_out_open(&f, path_of("e"), FILE_OVERWRITE));
  Status s = OK;
  for (int i = 0; !s && i < 4; i++) s = file_out_write(&f, block, sizeof block);
  if (!s) s = file_out_commit(&f);
  file_out_discard(&f);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
  assert_error(s, "cannot write");
  assert_content("e", "old");
  assert_int_equal(count_files(), 1);
  unlink(path_of("e"));
  assert_error(file_write_all("/dev/full", "x", 1, 0), "No space left");
}

static void devices_and_links(void **state) {
  (void)state;
  char link_path[512];
  assert_ok(file_write_all("/dev/null", "x", 1, FILE_OVERWRITE));
  assert_error(file_write_all(path_of("x/y"), "x", 1, 0), "cannot write");
  assert_ok(file_write_all(path_of("real"), "1", 1, 0));
  snprintf(link_path, sizeof link_path, "%s", path_of("link"));
  assert_int_equal(symlink("real", link_path), 0);
  assert_ok(file_write_all(link_path, "22", 2, FILE_OVERWRITE));
  assert_content("real", "22");
  struct stat st;
  assert_int_equal(lstat(link_path, &st), 0);
  assert_true(S_ISLNK(st.st_mode));
  unlink(link_path), unlink(path_of("real"));
}

static void folders(void **state) {
  (void)state;
  assert_ok(file_make_folder(path_of("p/q/r")));
  assert_ok(file_make_folder(path_of("p/q//r/")));
  assert_true(file_is_folder(path_of("p/q/r")));
  assert_ok(file_write_all(path_of("p/f"), "1", 1, 0));
  assert_error(file_make_folder(path_of("p/f/g")), "folder");
}

/* ---- past the page cache ------------------------------------------------------------------------------ */

enum { LARGE = 11000007 };

static void check_large(const char *path, const unsigned char *want) {
  static const size_t at[] = {0, 1, 511, 4096, 4097, 1048575, 5000000, LARGE - 1048577};
  unsigned char *got = aligned_alloc(4096, (LARGE + 8192) / 4096 * 4096);
  FileMap *f;
  assert_non_null(got);
  for (int cold = 0; cold < 2; cold++)
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
      for (int shift = 0; shift < 2; shift++) { /* aligned as disks like it, and not */
        int fd = open(path, O_RDONLY);
        assert_true(fd >= 0);
        fsync(fd);
        if (cold) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
        assert_ok(file_map(path, &f));
        assert_int_equal(f->size, LARGE);
        file_map_copy(f, at[i], got + shift, LARGE - at[i]);
        assert_memory_equal(got + shift, want + at[i], LARGE - at[i]);
        file_map_unref(f);
      }
  free(got);
}

static void large_pieces(void **state) {
  (void)state;
  static const size_t steps[] = {3, 1048576, 2000003, 70000, 4096, 5000001};
  unsigned char *data = malloc(LARGE);
  const char *path = path_of("large");
  FileOut f;
  assert_non_null(data);
  for (size_t i = 0; i < LARGE; i++) data[i] = (unsigned char)(i * 2654435761u >> 24);
  for (unsigned flags = 0; flags <= FILE_SYNC; flags += FILE_SYNC) {
    assert_ok(file_out_open(&f, path, flags | FILE_OVERWRITE));
    for (size_t at = 0, i = 0; at < LARGE; i++) {
      size_t n = steps[i % (sizeof steps / sizeof *steps)];
      if (n > LARGE - at) n = LARGE - at;
      assert_ok(file_out_write(&f, data + at, n));
      at += n;
    }
    assert_ok(file_out_commit(&f));
    check_large(path, data);
    assert_ok(file_out_open(&f, path, flags | FILE_OVERWRITE));
    for (size_t end = LARGE; end;) { /* from behind, at any place */
      size_t n = steps[end % (sizeof steps / sizeof *steps)];
      if (n > end) n = end;
      assert_ok(file_out_write_at(&f, end - n, data + end - n, n));
      end -= n;
    }
    assert_ok(file_out_commit(&f));
    check_large(path, data);
  }
  free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(maps),      cmocka_unit_test(never_overwrites_unasked),
                                     cmocka_unit_test(discarded), cmocka_unit_test(large_and_padded),
                                     cmocka_unit_test(full_disk), cmocka_unit_test(devices_and_links),
                                     cmocka_unit_test(folders),   cmocka_unit_test(large_pieces)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
