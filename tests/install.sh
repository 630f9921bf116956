#!/bin/sh
# install.sh BUILD SOURCE CC -- installs to a temporary prefix, moves it, and builds the
# example against it twice: with pkg-config and with CMake's find_package.
set -eu
build=$1 source=$2 cc=$3
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cmake --install "$build" --prefix "$temp/first" >/dev/null
mv "$temp/first" "$temp/prefix"
prefix=$temp/prefix

pc=$(dirname "$(find "$prefix" -name tessera.pc)")
lib=$(dirname "$(find "$prefix" -name libtessera.so)")
export PKG_CONFIG_PATH="$pc" LD_LIBRARY_PATH="$lib"
# shellcheck disable=SC2046  # a list of flags
"$cc" -Wall -Wextra -Werror "$source/examples/run_model.c" $(pkg-config --cflags --libs tessera) -o "$temp/with_pkg_config"
# shellcheck disable=SC2046
"$cc" -Wall -Wextra -Werror "$source/examples/dtensor.c" $(pkg-config --cflags --libs tessera) -o "$temp/dtensor"
"$temp/dtensor" | grep -q 'S(0)S(1).*its sum is 1860'
# shellcheck disable=SC2046
"$cc" -Wall -Wextra -Werror "$source/examples/parallel_transformer.c" $(pkg-config --cflags --libs tessera) -o "$temp/parallel_transformer"
"$temp/parallel_transformer" | grep -q 'step 60  loss 0\.0'

# Training from C, to the bits that the command line gives with the options that the example names.
# shellcheck disable=SC2046
"$cc" -Wall -Wextra -Werror "$source/examples/train_model.c" $(pkg-config --cflags --libs tessera) -o "$temp/train_model"
mkdir "$temp/train"
cp "$source/tests/golden/train/gpt_tied/forward.pt2" "$temp/train/loss.pt2"
cp "$source/tests/golden/train/gpt_tied/batches.safetensors" "$temp/train"
command=$(awk '/^ \* +tessera train/ { on = 1 } on { sub(/^ \* +/, ""); more = sub(/\\$/, ""); printf "%s", $0; if (!more) exit }' "$source/examples/train_model.c")
(cd "$temp/train" && "$temp/train_model" loss.pt2 batches.safetensors by_example.safetensors >told && eval "$prefix/bin/$command --quiet")
cmp "$temp/train/by_example.safetensors" "$temp/train/trained.safetensors"
grep -q '^loss over all batches: 3.07' "$temp/train/told"

# The header is for C++ too, where there is such a compiler.
if command -v c++ >/dev/null; then
  cat >"$temp/user.cpp" <<'END'
#include <tessera.h>
int main() {
  TessCtx *ctx = tess_ctx_new(1);
  const int64_t size[] = {2};
  float x[] = {1, 2};
  TessTensor *t = tess_tensor_from(ctx, TESS_F32, 1, size, x), *y = tess_call(ctx, "aten.add.Tensor", tess_t(t), tess_t(t));
  tess_read(ctx, y, x);
  tess_ctx_free(ctx);
  return x[0] == 2 && x[1] == 4 ? 0 : 1;
}
END
  # shellcheck disable=SC2046
  c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror "$temp/user.cpp" $(pkg-config --cflags --libs tessera) -o "$temp/with_c++"
  "$temp/with_c++"
fi

# The man page and the completions.
for file in man/man1/tessera.1 bash-completion/completions/tessera zsh/site-functions/_tessera fish/vendor_completions.d/tessera.fish; do
  grep -q 'save-plan' "$prefix/share/$file" || grep -q 'save\\-plan' "$prefix/share/$file" || { echo "install: share/$file lacks --save-plan"; exit 1; }
done
bash -c "source $prefix/share/bash-completion/completions/tessera && complete -p tessera" >/dev/null

mkdir "$temp/user"
cat >"$temp/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(tessera $(pkg-config --modversion tessera) REQUIRED)
add_executable(with_cmake $source/examples/run_model.c)
target_link_libraries(with_cmake tessera::tessera)
END
cmake -S "$temp/user" -B "$temp/user/build" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$temp/user/build" >/dev/null

model=$source/tests/golden/models/mlp
for program in "$temp/with_pkg_config" "$temp/user/build/with_cmake"; do
  "$program" "$model/program.pt2" "$model/inputs.safetensors" "$temp/out.safetensors"
  "$prefix/bin/tessera" run "$model/program.pt2" -i "$model/inputs.safetensors" --expect "$temp/out.safetensors" --rtol 0 --atol 0
  rm "$temp/out.safetensors"
done
echo "3 passed, 0 failed"
