/* page_script.js -- what the scripts of every page share; page.c puts it in.  R is the report. */
"use strict";
const R = JSON.parse(document.getElementById("report").textContent);
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";

/* h("td", {class: "n", tip: "..."}, children...): an element; texts are never parsed as HTML. */
function h(tag, attributes, ...children) {
  const svg = ["svg", "rect", "g", "text", "line", "path", "circle", "clipPath", "title"].includes(tag);
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "tip") tip(e, value);
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value);
  }
  e.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false));
  return e;
}
/* The box with more about what the mouse or the cursor is at, beside that point of the window. */
function showTip(text, x, y) {
  const box = document.getElementById("tip");
  box.textContent = text;
  box.style.display = "block";
  const r = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 8)) + "px";
  box.style.top = (y + 18 + r.height > innerHeight ? y - r.height - 10 : y + 18) + "px";
}
const hideTip = () => document.getElementById("tip").style.display = "none";
function tip(e, text) {
  e.addEventListener("mousemove", event => showTip(typeof text === "function" ? text() : text, event.clientX, event.clientY));
  e.addEventListener("mouseleave", hideTip);
}
// As printf does it: of two numbers that are equally near, the even one.
function fixed(n, digits) {
  const scaled = n * 10 ** digits, tie = Number.isInteger(n * 2 ** (digits + 1)) && scaled % 1 === 0.5;
  return (tie ? 2 * Math.round(scaled / 2) / 10 ** digits : n).toFixed(digits);
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 1024 && u < 4) n /= 1024, u++;
  return (u ? fixed(n, 1) : Math.round(n)) + " " + units[u];
}
function count(n) {
  const units = ["", "K", "M", "G", "T", "P"];
  let u = 0;
  while (n >= 1000 && u < 5) n /= 1000, u++;
  return (u ? fixed(n, 2) : Math.round(n)) + " " + units[u];
}
function seconds(s) {
  const units = ["s", "ms", "us", "ns"];
  let u = 0;
  while (s > 0 && s < 0.9995 && u < 3) s *= 1000, u++;
  return (s >= 99.95 ? s.toFixed(0) : s >= 9.995 ? s.toFixed(1) : s.toFixed(2)) + " " + units[u];
}
const base = path => path.split("/").pop();
const plural = (n, word) => n + " " + word + (n === 1 ? "" : "s");
function bar(parts, total) {
  return h("div", {class: "bar"}, parts.filter(p => p.value > 0).map(p =>
    h("i", {style: `width:${100 * p.value / total}%;background:var(--${p.color})`, tip: p.tip})));
}
const legend = entries => h("div", {class: "legend"}, entries.map(([color, text]) => h("span", {}, h("i", {style: `background:var(--${color})`}), text)));
function card(title, big, text, extra, kind) {
  return h("div", {class: "card " + (kind || "")}, h("div", {class: "soft"}, title), h("div", {class: "big"}, big), h("div", {class: "soft"}, text), extra);
}
/* "light / dark" */
function themeButton() {
  const theme = () => document.documentElement.dataset.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  return h("button", {onclick: theme, title: "light or dark"}, "light / dark");
}
