"use strict";
// The script of the page: see page.go for what it reads. All text becomes text nodes.
(() => {
const $ = id => document.getElementById(id);
const { css, units, bits, axes } = softrocePlot;
const data = JSON.parse($("data").textContent);
const shown = 8, detail = 250; // lines of a diagram, values of a line

const octets = v => units(v, 1000, ["B", "kB", "MB", "GB", "TB"]);
const percent = v => +(100 * v).toPrecision(3) + " %";
const count = v => String(Math.round(v));
const times = [0, ...data.times.map(t => t / 1e9)]; // seconds
const last = times[times.length - 1];

// How a diagram joins the values of several intervals.
const mean = (values, i, j) => {
  let sum = 0;
  for (let k = i; k < j; k++) sum += values[k] * (times[k + 1] - times[k]);
  return sum / (times[j] - times[i]);
};
const most = (values, i, j) => { let m = 0; for (let k = i; k < j; k++) m = Math.max(m, values[k]); return m; };
const sum = (values, i, j) => { let m = 0; for (let k = i; k < j; k++) m += values[k]; return m; };

// joined returns what is drawn of lines if each n intervals are joined. A value is that of the time
// before it.
function joined(d, lines, n) {
  const xs = [0], ys = lines.map(() => []);
  for (let i = 0; i < times.length - 1; i += n) {
    const j = Math.min(i + n, times.length - 1);
    xs.push(times[j]);
    lines.forEach((l, k) => {
      const v = d.join(l.values, i, j);
      if (!i) ys[k].push(v);
      ys[k].push(v);
    });
  }
  return [xs, ...ys];
}

// joining returns how many intervals are joined where a part of the run is visible.
const joining = (min, max) => Math.max(1, Math.ceil((times.length - 1) * (max - min) / last / detail));

const diagrams = [
  { id: "rates", lines: data.rates, format: bits, join: mean, none: "No NIC sent anything." },
  { id: "queues", lines: data.queues, format: octets, join: most, none: "No port had a queue." },
  { id: "paused", lines: data.paused, format: percent, join: mean, none: "No port was paused." },
  { id: "signals", lines: data.signals, format: count, join: sum, none: "There were no marks, CNPs and losses.", all: true },
];
const plots = {};

// shade draws failures and the warm-up behind the lines, and a deadlock at the end of the run.
function shade(u) {
  const { ctx } = u, { left, top, width, height } = u.bbox;
  const x = t => Math.min(left + width, Math.max(left, u.valToPos(t / 1e9, "x", true)));
  const bar = (from, to, color) => { ctx.fillStyle = css(color); ctx.fillRect(x(from), top, Math.max(1, x(to) - x(from)), height); };
  ctx.save();
  if (data.measured > 0) bar(0, data.measured, "panel");
  for (const [from, to] of data.failures) bar(from, to, "failure");
  ctx.restore();
}

function edge(u) {
  if (!data.deadlock) return;
  const { ctx } = u, { top, height } = u.bbox, x = u.valToPos(last, "x", true);
  ctx.save();
  ctx.strokeStyle = css("deadlock");
  ctx.lineWidth = 2 * (devicePixelRatio || 1);
  ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
  ctx.restore();
}

const widthOf = box => Math.max(300, box.clientWidth - 2);
const upwards = (u, min, max) => [0, max > 0 ? max * 1.08 : 1];

function stroke(i, more) {
  return { stroke: () => css("c" + i % shown), width: 1.5, points: { show: false }, ...more };
}

// draw draws the lines of a diagram with a word in their names.
function draw(d, word) {
  const box = $(d.id);
  if (plots[d.id]) plots[d.id].destroy();
  delete plots[d.id];
  const some = (d.lines || []).filter(l => d.all || l.name.toLowerCase().includes(word)), lines = some.slice(0, shown);
  document.querySelector("[data-count=" + d.id + "]").textContent = some.length > lines.length ? "(" + lines.length + " of " + some.length + ", the highest first)" : "";
  box.classList.toggle("empty", !lines.length);
  box.textContent = lines.length ? "" : d.lines && d.lines.length ? "There is none of this name." : d.none;
  if (!lines.length) return;
  const value = (u, v) => v == null ? "–" : d.format(v);
  const [x, y] = axes((u, splits) => splits.map(d.format), 84);
  let n = joining(0, last);
  const refine = (u, scale) => {
    if (scale !== "x" || joining(u.scales.x.min, u.scales.x.max) === n) return;
    n = joining(u.scales.x.min, u.scales.x.max);
    u.setData(joined(d, lines, n), false);
  };
  plots[d.id] = new uPlot({
    width: widthOf(box), height: 220, axes: [x, y], scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { range: upwards } },
    cursor: { sync: { key: "time", setSeries: false, scales: ["x", null] }, points: { show: false } },
    hooks: { drawClear: [shade], draw: [edge], setScale: [refine] },
    series: [{ label: "Time", value: (u, v) => v == null ? "–" : +(v * 1e3).toPrecision(6) + " ms" },
      ...lines.map((l, i) => stroke(i, { label: l.name, value, paths: uPlot.paths.stepped({ align: -1 }) }))],
  }, joined(d, lines, n), box);
}

// drawSlowdown draws percentiles by size, on logarithmic scales.
function drawSlowdown() {
  const box = $("slowdown"), s = data.slowdown;
  if (!box || !s.sizes) return;
  const [x, y] = axes((u, splits) => splits.map(v => v == null ? "" : +v.toPrecision(3) + "×"), 84);
  const decades = (u, min, max) => [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max * 1.01))];
  plots.slowdown = new uPlot({
    width: widthOf(box), height: 260, axes: [{ ...x, values: (u, splits) => splits.map(v => v == null ? "" : octets(v)) }, y],
    scales: { x: { time: false, distr: 3, range: decades }, y: { distr: 3, range: (u, min, max) => [Math.min(1, min), max * 1.5] } },
    series: [{ label: "Size up to", value: (u, v) => v == null ? "–" : octets(v) },
      ...s.lines.map((l, i) => stroke(i, { label: l.name, points: { show: true, size: 6, fill: () => css("c" + i) }, value: (u, v) => v == null ? "–" : v.toFixed(2) + "×" }))],
  }, [s.sizes, ...s.lines.map(l => l.values)], box);
}

function drawAll() {
  const word = $("find").value.trim().toLowerCase();
  for (const d of diagrams) draw(d, word);
}

$("find").addEventListener("input", drawAll);
$("whole").onclick = () => { for (const d of diagrams) if (plots[d.id]) plots[d.id].setScale("x", { min: 0, max: last }); };
const redraw = () => { for (const p of Object.values(plots)) p.redraw(false, true); };
new ResizeObserver(() => {
  for (const [id, p] of Object.entries(plots)) {
    const width = widthOf($(id));
    if (width !== p.width) p.setSize({ width, height: p.height });
  }
}).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; redraw(); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; redraw(); });

drawAll();
drawSlowdown();

// What tests read.
globalThis.softroceSim = { data, plots };
})();
