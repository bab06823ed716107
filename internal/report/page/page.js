"use strict";
// The script of the page: see page.go for what it reads. All text of the capture becomes text nodes.
(() => {
const $ = id => document.getElementById(id);
const { css, bits, octets, axes } = softrocePlot;
const meta = JSON.parse($("meta").textContent);

// The series of the diagram, in the order of the classes and flags of point.go.
const series = [
  { key: "request", name: "sent", shape: "dot" },
  { key: "again", name: "sent again", shape: "cross", rare: true },
  { key: "response", name: "response", shape: "ring" },
  { key: "ack", name: "acknowledged", shape: "dash" },
  { key: "nak", name: "NAK", shape: "diamond", rare: true },
  { key: "rnr", name: "RNR NAK", shape: "square", rare: true },
  { key: "cnp", name: "CNP", shape: "plus", rare: true },
  { key: "copy", name: "copied or delayed by the network", shape: "ring", rare: true },
  { key: "damaged", name: "discarded", shape: "cross", rare: true },
  { key: "ce", name: "CE mark", shape: "circle", rare: true },
  { key: "violation", name: "breaks a rule", shape: "down", rare: true },
  { key: "comment", name: "fault rule or comment", shape: "up", rare: true },
];
const AGAIN = 1, NAK = 4, RNR = 5, DAMAGED = 8, FLAGS = 9;
const drawOrder = [3, 2, 0, 7, 6, 1, 9, 5, 4, 8, 11, 10];
const flagCE = 1, flagViolation = 2, flagComment = 4;

// ---- Reading

function unbase64(text) {
  const s = atob(text), b = new Uint8Array(s.length);
  for (let i = 0; i < s.length; i++) b[i] = s.charCodeAt(i);
  return b;
}

// unpack returns the data of a blob, which may follow this script in the page. An element is
// complete when the next one is there.
async function unpack(id) {
  while (document.readyState === "loading" && !$("b" + (id + 1))) await new Promise(next => setTimeout(next, 10));
  const raw = new Blob([unbase64($("b" + id).textContent)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(raw).arrayBuffer());
}

class Reader {
  constructor(bytes) { this.b = bytes; this.i = 0; }
  byte() { return this.b[this.i++]; }
  unsigned() {
    let n = 0, scale = 1;
    for (;;) {
      const c = this.b[this.i++];
      n += (c & 0x7f) * scale;
      if (c < 0x80) return n;
      scale *= 128;
    }
  }
  signed() {
    const n = this.unsigned();
    return n % 2 ? -(n + 1) / 2 : n / 2;
  }
}

// A chunk of points has a column for each of their fields.
function decodePoints(bytes, n) {
  const r = new Reader(bytes);
  const c = { n, no: new Float64Array(n), at: new Float64Array(n), side: new Uint8Array(n), stream: new Uint8Array(n), cls: new Uint8Array(n),
    flags: new Uint8Array(n), opcode: new Uint8Array(n), seq: new Float64Array(n), bytes: new Float64Array(n), outstanding: new Float64Array(n) };
  let v = 0;
  for (let i = 0; i < n; i++) c.no[i] = v += r.unsigned();
  v = 0;
  for (let i = 0; i < n; i++) c.at[i] = v += r.signed();
  for (let i = 0; i < n; i++) {
    const b = r.byte();
    c.side[i] = b & 1; c.stream[i] = b >> 1 & 1; c.cls[i] = b >> 2;
  }
  for (let i = 0; i < n; i++) c.flags[i] = r.byte();
  for (let i = 0; i < n; i++) c.opcode[i] = r.byte();
  let of = [0, 0];
  for (let i = 0; i < n; i++) c.seq[i] = of[c.stream[i]] += r.signed();
  for (let i = 0; i < n; i++) c.bytes[i] = r.unsigned();
  of = [0, 0];
  for (let i = 0; i < n; i++) c.outstanding[i] = of[c.stream[i]] += r.signed();
  return c;
}

function decodeBlocks(bytes, n) {
  const r = new Reader(bytes), blocks = [], seq = [0, 0];
  const span = base => { const count = r.unsigned(), low = base + r.signed(); return { n: count, low, high: low + r.unsigned() }; };
  let at = 0;
  for (let i = 0; i < n; i++) {
    const b = { n: r.unsigned(), first: at += r.signed(), last: 0, streams: [] };
    b.last = b.first + r.unsigned();
    for (let s = 0; s < 2; s++) {
      const st = { bytes: r.unsigned(), outstanding: span(0), spans: [] };
      for (let k = r.byte(); k > 0; k--) {
        const of = r.byte(), sp = span(seq[s]);
        seq[s] = sp.low;
        st.spans[of] = sp;
      }
      b.streams.push(st);
    }
    blocks.push(b);
  }
  return blocks;
}

// decodeEdges returns steps as pairs of a time and a PSN, -1 if no PSN of the capture is the limit.
function decodeEdges(bytes, n) {
  const r = new Reader(bytes), out = [];
  let at = 0, seq = 0;
  for (let i = 0; i < n; i++) out.push([at += r.signed(), seq += r.signed()]);
  return out;
}

// A connection with what of it has been unpacked.
class Connection {
  constructor(index) {
    this.index = index;
    this.meta = meta.connections[index];
    this.chunks = new Map();
    this.texts = new Map();
    this.levels = new Map();
    this.edges = new Map();
    this.first = this.meta.first;
    this.last = Math.max(this.meta.last, this.first + 1000);
  }
  // once returns what a function made before for a key, or else lets it make it, and redraws then.
  once(map, key, make) {
    const have = map.get(key);
    if (have !== undefined) return have;
    map.set(key, null);
    this.loading = (this.loading || 0) + 1;
    make().then(v => { map.set(key, v); }).finally(() => { this.loading--; schedule(); });
    return null;
  }
  chunk(i) { const [id, n] = this.meta.chunks[i]; return this.once(this.chunks, i, async () => decodePoints(await unpack(id), n)); }
  text(i) { return this.once(this.texts, i, async () => new TextDecoder().decode(await unpack(this.meta.texts[i])).split("\n")); }
  edgeChunk(stream, i) {
    const [id, n] = this.meta.streams[stream].edge_chunks[i];
    return this.once(this.edges, id, async () => decodeEdges(await unpack(id), n));
  }
  level(i) { const l = this.meta.levels[i]; return this.once(this.levels, i, async () => decodeBlocks(await unpack(l.id), l.n)); }
  async load() {
    for (let i = 0; i < this.meta.chunks.length; i++) {
      if (!this.chunks.get(i)) this.chunks.set(i, decodePoints(await unpack(this.meta.chunks[i][0]), this.meta.chunks[i][1]));
    }
  }
  // line returns a packet's line of text, null while it is unpacked.
  line(index) {
    const lines = this.text(Math.floor(index / meta.chunk_texts));
    return lines && lines[index % meta.chunk_texts];
  }
  // at returns the chunk of a packet and its index there.
  at(index) { return [this.chunk(Math.floor(index / meta.chunk_points)), index % meta.chunk_points]; }
  // range returns the chunks that have packets of a time: [from, to).
  range(t0, t1) {
    const c = this.meta.chunks;
    let from = 0, to = c.length;
    while (from < to && c[from][3] < t0) from++;
    while (to > from && c[to - 1][2] > t1) to--;
    return [from, to];
  }
}

// ---- What is shown

const view = { conn: null, stream: 0, t0: 0, t1: 1, hidden: new Set(), opcodes: null, selected: -1, shown: null, edges: [], rates: [] };
const connections = meta.connections.map((_, i) => new Connection(i));
const violations = new Map(), comments = new Map(), spots = new Map();
for (const v of meta.violations) push(violations, v.packet, v);
for (const c of meta.comments) push(comments, c.packet, c.text);
for (const [no, conn, index] of meta.spots) spots.set(no, [conn, index]);

function push(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}

function isFiltered() { return view.opcodes !== null; }

// visible calls f with each point of the window that no filter leaves out: the chunk and the index
// in it. It returns false if some points are not unpacked yet.
function visible(f) {
  const c = view.conn, [from, to] = c.range(view.t0, view.t1);
  let all = true;
  for (let k = from; k < to; k++) {
    const p = c.chunk(k);
    if (!p) { all = false; continue; }
    for (let i = 0; i < p.n; i++) {
      if (p.at[i] >= view.t0 && p.at[i] <= view.t1 && shows(p, i)) f(p, i, k);
    }
  }
  return all;
}

function shows(p, i) { return !view.opcodes || view.opcodes.has(p.opcode[i]); }

// shown returns whether a point or its flags belong to a series that is not hidden.
function isHidden(p, i) {
  if (!view.hidden.has(p.cls[i])) return false;
  for (let f = 0; f < 3; f++) if (p.flags[i] & 1 << f && !view.hidden.has(FLAGS + f)) return false;
  return true;
}

// items returns what the diagrams draw of the window: points if there are few or a filter is set,
// and else blocks of the finest level that is there and not too fine. Counts are those of the whole window.
function items() {
  const c = view.conn, out = { points: [], blocks: null, counts: new Float64Array(series.length), low: Infinity, high: -Infinity };
  const [from, to] = c.range(view.t0, view.t1);
  let n = 0;
  for (let k = from; k < to; k++) n += c.meta.chunks[k][1];
  const few = n <= 2 * meta.detail || c.meta.levels.length === 0;
  if (few || isFiltered()) {
    const whole = visible((p, i) => {
      if (p.stream[i] !== view.stream) return;
      out.counts[p.cls[i]]++;
      for (let f = 0; f < 3; f++) if (p.flags[i] & 1 << f) out.counts[FLAGS + f]++;
      out.points.push(p, i);
      if (isHidden(p, i)) return;
      out.low = Math.min(out.low, p.seq[i]); out.high = Math.max(out.high, p.seq[i]);
    });
    out.partial = !whole;
    if (whole || !c.meta.levels.length) return out;
  }
  let blocks = null;
  for (let level = c.meta.levels.length - 1; level >= 0; level--) {
    const all = c.level(level);
    if (!all) { out.partial = true; break; }
    blocks = all.filter(b => b.last >= view.t0 && b.first <= view.t1);
    if (blocks.length * meta.block_factor > 1600) break;
  }
  out.blocks = blocks || [];
  out.points = [];
  out.counts.fill(0);
  for (const b of out.blocks) {
    b.streams[view.stream].spans.forEach((s, k) => {
      out.counts[k] += s.n;
      if (view.hidden.has(k)) return;
      out.low = Math.min(out.low, s.low); out.high = Math.max(out.high, s.high);
    });
  }
  return out;
}

// ---- Diagrams

let plots = null;

function mark(ctx, shape, x, y, r) {
  ctx.beginPath();
  switch (shape) {
  case "dot": ctx.rect(x - r / 2, y - r / 2, r, r); ctx.fill(); return;
  case "ring": ctx.arc(x, y, r * .7, 0, 7); ctx.stroke(); return;
  case "circle": ctx.arc(x, y, r * 1.5, 0, 7); ctx.stroke(); return;
  case "dash": ctx.moveTo(x - r, y); ctx.lineTo(x + r, y); ctx.stroke(); return;
  case "cross": ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x - r, y + r); ctx.lineTo(x + r, y - r); ctx.stroke(); return;
  case "plus": ctx.moveTo(x - r, y); ctx.lineTo(x + r, y); ctx.moveTo(x, y - r); ctx.lineTo(x, y + r); ctx.stroke(); return;
  case "diamond": ctx.moveTo(x, y - r * 1.4); ctx.lineTo(x + r * 1.4, y); ctx.lineTo(x, y + r * 1.4); ctx.lineTo(x - r * 1.4, y); ctx.fill(); return;
  case "square": ctx.rect(x - r, y - r, 2 * r, 2 * r); ctx.fill(); return;
  case "down": ctx.moveTo(x, y - r * .6); ctx.lineTo(x - r, y - 2.4 * r); ctx.lineTo(x + r, y - 2.4 * r); ctx.fill(); return;
  case "up": ctx.moveTo(x, y + r * .6); ctx.lineTo(x - r, y + 2.4 * r); ctx.lineTo(x + r, y + 2.4 * r); ctx.fill(); return;
  }
}

function drawPSN(u) {
  const it = view.shown;
  if (!it) return;
  const ctx = u.ctx, { left, top, width, height } = u.bbox, ratio = devicePixelRatio || 1;
  const y0 = u.scales.y.min, y1 = u.scales.y.max;
  const X = t => left + (t / 1e9 - u.scales.x.min) / (u.scales.x.max - u.scales.x.min) * width;
  const Y = s => top + height - (s - y0) / (y1 - y0) * height;
  ctx.save();
  ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
  const color = series.map(s => css(s.key));
  drawEdges(ctx, X, Y, ratio, left, width);
  ctx.lineWidth = 1.6 * ratio;
  const w = Math.ceil(width / ratio) + 1, grid = new Uint16Array(w * (Math.ceil(height / ratio) + 1));
  const dense = it.points.length / 2 > 600;
  const common = (dense ? 2.4 : 5) * ratio;
  for (const k of drawOrder) {
    if (view.hidden.has(k) || !it.counts[k]) continue;
    const s = series[k], rare = (it.counts[k] > 200 ? 2.4 : dense ? 4 : 5) * ratio, r = s.rare ? rare : common;
    ctx.fillStyle = ctx.strokeStyle = color[k];
    for (let j = 0; j < it.points.length; j += 2) {
      const p = it.points[j], i = it.points[j + 1];
      if (k < FLAGS ? p.cls[i] !== k : !(p.flags[i] & 1 << k - FLAGS)) continue;
      const x = X(p.at[i]), y = Y(p.seq[i]);
      const cell = Math.floor((y - top) / ratio) * w + Math.floor((x - left) / ratio);
      if (grid[cell] & 1 << k) continue;
      grid[cell] |= 1 << k;
      mark(ctx, s.shape, x, y, r);
    }
    for (const b of it.blocks || []) {
      const sp = b.streams[view.stream].spans[k];
      if (!sp) continue;
      const x = X(b.first), bw = Math.max(X(b.last) - x, ratio), y = Y(sp.high), bh = Math.max(Y(sp.low) - y, 1.5 * ratio);
      if (s.rare) {
        mark(ctx, s.shape, x + bw / 2, y, rare);
        if (bh > 3 * rare) mark(ctx, s.shape, x + bw / 2, y + bh, rare);
        ctx.globalAlpha = .5;
        if (bh > 3 * rare) ctx.fillRect(x + bw / 2 - ratio / 2, y, ratio, bh);
      } else {
        ctx.globalAlpha = .75;
        ctx.fillRect(x, y, bw, bh);
      }
      ctx.globalAlpha = 1;
    }
  }
  drawSelected(ctx, X, Y, ratio, top, height);
  ctx.restore();
}

// steps returns those of the responder's credits: time, and the PSN after the last that they permit.
// Of many in the window, these are some; of few, all.
function steps() {
  const c = view.conn, s = c.meta.streams[view.stream], chunks = s.edge_chunks;
  let from = 0, to = chunks.length;
  while (from < to && chunks[from][3] < view.t0) from++;
  while (to > from && chunks[to - 1][2] > view.t1) to--;
  from = Math.max(0, from - 1); // the limit at the beginning of the window
  if (!chunks.length || to - from > 4) return s.edges;
  const all = [];
  for (let k = from; k < to; k++) {
    const part = c.edgeChunk(view.stream, k);
    if (!part) return s.edges;
    all.push(...part);
  }
  return all;
}

// drawEdges draws the limit of the responder's credits.
function drawEdges(ctx, X, Y, ratio, left, width) {
  const edges = view.edges;
  if (!edges.length) return;
  ctx.strokeStyle = css("edge");
  ctx.lineWidth = 1.2 * ratio;
  ctx.setLineDash([5 * ratio, 4 * ratio]);
  ctx.beginPath();
  let last = null;
  for (const [at, seq] of edges) {
    const x = X(at), y = Y(seq);
    if (last !== null) ctx.lineTo(x, last);
    if (seq >= 0) { if (last === null) ctx.moveTo(x, y); else ctx.lineTo(x, y); last = y; } else last = null;
  }
  if (last !== null) ctx.lineTo(left + width, last);
  ctx.stroke();
  ctx.setLineDash([]);
}

function drawSelected(ctx, X, Y, ratio, top, height) {
  if (view.selected < 0) return;
  const [p, i] = view.conn.at(view.selected);
  if (!p) return;
  ctx.strokeStyle = css("accent");
  ctx.lineWidth = ratio;
  const x = X(p.at[i]);
  ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
  if (p.stream[i] === view.stream) {
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath(); ctx.arc(x, Y(p.seq[i]), 8 * ratio, 0, 7); ctx.stroke();
  }
}

// bins returns the throughput in bits per second, over time, of the streams of both ends. A bin has
// the share of a block's bytes that is the block's time in it.
function bins(it) {
  const n = it.blocks ? 240 : Math.max(12, Math.min(240, Math.round(it.points.length / 8)));
  const step = (view.t1 - view.t0) / n, sums = [new Float64Array(n), new Float64Array(n)];
  const put = (stream, first, last, bytes) => {
    const from = (first - view.t0) / step, to = (last - view.t0) / step;
    const a = Math.max(0, Math.floor(from)), b = Math.min(n - 1, Math.floor(to));
    for (let i = a; i <= b; i++) sums[stream][i] += to > from ? bytes * (Math.min(to, i + 1) - Math.max(from, i)) / (to - from) : bytes;
  };
  if (it.blocks) for (const b of it.blocks) for (const s of [0, 1]) put(s, b.first, b.last, b.streams[s].bytes);
  else visible((p, i) => put(p.stream[i], p.at[i], p.at[i], p.bytes[i]));
  const xs = new Float64Array(n);
  for (let i = 0; i < n; i++) xs[i] = (view.t0 + (i + .5) * step) / 1e9;
  return [xs, ...sums.map(b => b.map(v => v * 8 / (step / 1e9)))];
}

// outstanding returns the lowest and the highest number of outstanding bytes over time.
function outstanding(it) {
  const xs = [], low = [], high = [];
  for (const b of it.blocks || []) {
    const s = b.streams[view.stream].outstanding;
    if (s.n) { xs.push((b.first + b.last) / 2e9); low.push(s.low); high.push(s.high); }
  }
  const stride = Math.max(1, Math.ceil(it.points.length / 2 / 4000));
  for (let j = 0; j < it.points.length; j += 2 * stride) {
    const p = it.points[j], i = it.points[j + 1];
    let a = Infinity, b = -Infinity;
    for (let m = j; m < Math.min(j + 2 * stride, it.points.length); m += 2) {
      const o = it.points[m].outstanding[it.points[m + 1]];
      a = Math.min(a, o); b = Math.max(b, o);
    }
    xs.push(p.at[i] / 1e9); low.push(a); high.push(b);
  }
  return [xs, low, high];
}

const wirePSN = s => ((view.conn.meta.streams[view.stream].psn + s) % 0x1000000 + 0x1000000) % 0x1000000;

function makePlots() {
  const sync = { key: "time", setSeries: false, scales: ["x", null] };
  const cursor = { sync, drag: { x: true, y: false, setScale: false }, points: { show: false } };
  const hooks = { setSelect: [u => {
    if (u.select.width > 3) zoom(u.posToVal(u.select.left, "x") * 1e9, u.posToVal(u.select.left + u.select.width, "x") * 1e9);
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }] };
  const bind = { dblclick: () => () => whole() };
  const base = (id, height) => ({ width: Math.max(300, $(id).clientWidth - 2), height, legend: { show: false }, cursor: { ...cursor, bind }, hooks });
  const x = { time: false, auto: false, range: () => [view.t0 / 1e9, view.t1 / 1e9] };
  const up = (u, min, max) => [0, max > 0 ? max * 1.08 : 1];
  const psn = new uPlot({ ...base("psn", 380), scales: { x, y: { range: () => view.psns || [0, 1] } },
    axes: axes((u, splits) => splits.map(v => Number.isInteger(v) ? String(wirePSN(v)) : ""), 84), series: [{}, { show: false }],
    hooks: { ...hooks, draw: [drawPSN], setCursor: [u => hover(u)] } }, [[0, 1], [0, 1]], $("psn"));
  const rate = new uPlot({ ...base("rate", 150), scales: { x, y: { range: up } }, axes: axes((u, splits) => splits.map(bits), 84),
    series: [{}, { label: "0", stroke: () => css("request"), width: 1.5, paths: uPlot.paths.stepped({ align: 0 }), points: { show: false } },
      { label: "1", stroke: () => css("again"), width: 1.5, dash: [6, 3], paths: uPlot.paths.stepped({ align: 0 }), points: { show: false } }] }, [[0, 1], [0, 0], [0, 0]], $("rate"));
  const out = new uPlot({ ...base("outstanding", 150), scales: { x, y: { range: up } }, axes: axes((u, splits) => splits.map(octets), 84),
    series: [{}, { stroke: () => css("soft"), width: 1, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
      { stroke: () => css("ack"), width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
    bands: [{ series: [2, 1], fill: () => css("grid") }] }, [[0, 1], [0, 0], [0, 0]], $("outstanding"));
  plots = { psn, rate, out };
  new ResizeObserver(() => {
    for (const [p, id] of [[psn, "psn"], [rate, "rate"], [out, "outstanding"]]) {
      const w = Math.max(300, $(id).clientWidth - 2);
      if (w !== p.width) p.setSize({ width: w, height: p.height });
    }
  }).observe($("view"));
}

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

function draw() {
  if (!view.conn) return;
  const it = view.shown = items();
  const low = Number.isFinite(it.low) ? it.low : 0;
  let high = Number.isFinite(it.high) ? it.high : 1;
  view.edges = steps();
  const limit = highestEdge();
  const far = limit > low + 3 * Math.max(high - low, 1); // it would leave no room for the packets
  if (!far) high = Math.max(high, limit);
  const margin = Math.max(1, (high - low) * .05);
  view.psns = [low - margin, high + margin];
  plots.psn.setData([[view.t0 / 1e9, view.t1 / 1e9], [0, 1]]);
  view.rates = bins(it);
  plots.rate.setData(view.rates);
  plots.out.setData(outstanding(it));
  drawLegend(it, far);
  if (document.activeElement !== $("from")) $("from").value = (view.t0 / 1e9).toFixed(9);
  if (document.activeElement !== $("to")) $("to").value = (view.t1 / 1e9).toFixed(9);
  drawLadder();
}

// highestEdge returns the highest limit in the window.
function highestEdge() {
  let high = -Infinity, before = -Infinity; // of the window, at its beginning
  for (const [at, seq] of view.edges) {
    if (at < view.t0) before = seq; else if (at <= view.t1) high = Math.max(high, seq);
  }
  return Math.max(high, before);
}

function drawLegend(it, far) {
  const buttons = $("legend").children;
  const edges = view.conn.meta.streams[view.stream].edges.length > 0;
  series.forEach((s, k) => {
    buttons[k].hidden = !it.counts[k] && !view.hidden.has(k);
    buttons[k].lastChild.textContent = s.name + " " + it.counts[k].toLocaleString("en").replaceAll(",", "\u202f");
    buttons[k].dataset.count = it.counts[k];
    const c = buttons[k].firstChild, ctx = c.getContext("2d");
    ctx.clearRect(0, 0, 28, 28);
    ctx.fillStyle = ctx.strokeStyle = css(s.key);
    ctx.lineWidth = 3;
    mark(ctx, s.shape, 14, s.shape === "down" ? 20 : s.shape === "up" ? 7 : 14, 7);
  });
  $("legend").lastChild.hidden = !edges;
  $("legend").lastChild.textContent = "┄ limit of the credits" + (far ? " (above)" : "");
}

function makeLegend() {
  series.forEach((s, k) => {
    const b = document.createElement("button"), c = document.createElement("canvas");
    b.type = "button";
    b.dataset.series = s.key;
    b.setAttribute("aria-pressed", "true");
    c.width = c.height = 28;
    b.append(c, document.createTextNode(s.name));
    b.onclick = () => {
      if (view.hidden.has(k)) view.hidden.delete(k); else view.hidden.add(k);
      b.setAttribute("aria-pressed", String(!view.hidden.has(k)));
      view.ladder = null;
      schedule();
    };
    $("legend").append(b);
  });
  const edge = document.createElement("span");
  edge.className = "edge";
  $("legend").append(edge);
}

// ---- Window

function zoom(t0, t1) {
  const c = view.conn, least = 20;
  if (t1 - t0 < least) { const mid = (t0 + t1) / 2; t0 = mid - least / 2; t1 = mid + least / 2; }
  const w = Math.min(t1 - t0, c.padded[1] - c.padded[0]);
  view.t0 = Math.max(c.padded[0], Math.min(t0, c.padded[1] - w));
  view.t1 = view.t0 + w;
  view.ladder = null;
  schedule();
}
function whole() { zoom(...view.conn.padded); }
function scale(f, at = (view.t0 + view.t1) / 2) { zoom(at - (at - view.t0) * f, at + (view.t1 - at) * f); }
function move(f) { const d = (view.t1 - view.t0) * f; zoom(view.t0 + d, view.t1 + d); }

// select shows a packet. It moves the window to it if it is not in it, and zooms if near is set.
async function select(index, near) {
  const c = view.conn;
  view.selected = index;
  const k = Math.floor(index / meta.chunk_points);
  if (!c.chunks.get(k)) c.chunks.set(k, decodePoints(await unpack(c.meta.chunks[k][0]), c.meta.chunks[k][1]));
  const [p, i] = c.at(index), at = p.at[i];
  if (near) {
    const around = Math.min(c.padded[1] - c.padded[0], neighborhood(index));
    zoom(at - around / 2, at + around / 2);
  } else if (at < view.t0 || at > view.t1) {
    zoom(at - (view.t1 - view.t0) / 2, at + (view.t1 - view.t0) / 2);
  }
  if (near && c.meta.streams[p.stream[i]].requests) setStream(p.stream[i]);
  view.scrollTo = index;
  schedule();
}

// neighborhood returns a time that a packet and some before and after it take.
function neighborhood(index) {
  const c = view.conn, some = 20;
  const [p, i] = c.at(index), a = Math.max(0, i - some), b = Math.min(p.n - 1, i + some);
  return Math.max(1000, 2.2 * Math.max(Math.abs(p.at[b] - p.at[i]), Math.abs(p.at[i] - p.at[a])));
}

async function problem(direction) {
  const c = view.conn;
  const first = view.selected >= 0 ? view.selected + direction : direction > 0 ? 0 : c.meta.packets - 1;
  for (let index = first; index >= 0 && index < c.meta.packets; index += direction) {
    const k = Math.floor(index / meta.chunk_points);
    if (!c.chunks.get(k)) c.chunks.set(k, decodePoints(await unpack(c.meta.chunks[k][0]), c.meta.chunks[k][1]));
    const [p, i] = c.at(index);
    if (p.flags[i] & (flagViolation | flagComment) || [AGAIN, NAK, RNR, DAMAGED].includes(p.cls[i])) return select(index, true);
  }
}

function setStream(s) {
  view.stream = s;
  [...$("streams").children].forEach(b => b.setAttribute("aria-checked", String(+b.dataset.stream === s)));
  schedule();
}

async function open(index, packet) {
  const c = connections[index];
  $("view").hidden = false;
  if (!plots) { makeLegend(); makePlots(); }
  const pad = (c.last - c.first) * .01 + 10;
  c.padded = [c.first - pad, c.last + pad];
  view.conn = c;
  view.selected = -1;
  view.opcodes = null;
  view.ladder = null;
  showPacket(-1);
  $("h-view").textContent = c.meta.ends[0] + " ↔ " + c.meta.ends[1] + " (" + c.meta.service + ")";
  document.querySelectorAll("#connections tr[data-connection]").forEach(tr => tr.classList.toggle("selected", +tr.dataset.connection === index));
  $("streams").replaceChildren(...[0, 1].filter(s => c.meta.streams[s].requests || !c.meta.streams[1 - s].requests).map(s => {
    const b = document.createElement("button");
    b.type = "button";
    b.dataset.stream = s;
    b.setAttribute("role", "radio");
    b.textContent = "requests of " + c.meta.ends[s];
    b.onclick = () => setStream(s);
    return b;
  }));
  const ends = document.querySelectorAll("#ladder-head .ends b");
  $("rate-ends").textContent = ": ━ requests of " + c.meta.ends[0] + " and their responses, ┅ those of " + c.meta.ends[1];
  ends[0].textContent = c.meta.ends[0];
  ends[1].textContent = c.meta.ends[1];
  $("ladder").scrollTop = 0;
  listOpcodes();
  setStream(c.meta.streams[1].requests > c.meta.streams[0].requests ? 1 : 0);
  whole();
  if (packet !== undefined) await select(packet, true);
}

// listOpcodes lists those of the connection, as far as they are known without unpacking all of it.
async function listOpcodes() {
  const box = $("opcodes").querySelector("div"), name = $("opcodes").querySelector("summary"), c = view.conn;
  name.textContent = "Opcodes: all";
  box.replaceChildren();
  $("opcodes").ontoggle = async () => {
    if (!$("opcodes").open || box.children.length) return;
    await c.load();
    if (view.conn !== c || box.children.length) return;
    const counts = new Map();
    for (const p of c.chunks.values()) for (let i = 0; i < p.n; i++) counts.set(p.opcode[i], (counts.get(p.opcode[i]) || 0) + 1);
    const off = new Set();
    for (const o of [...counts.keys()].sort((a, b) => a - b)) {
      const l = document.createElement("label"), input = document.createElement("input");
      input.type = "checkbox";
      input.checked = true;
      input.value = o;
      input.onchange = () => {
        if (input.checked) off.delete(o); else off.add(o);
        view.opcodes = off.size ? new Set([...counts.keys()].filter(k => !off.has(k))) : null;
        name.textContent = "Opcodes: " + (off.size ? view.opcodes.size + " of " + counts.size : "all");
        view.ladder = null;
        schedule();
      };
      l.append(input, " " + meta.opcodes[o] + " (" + counts.get(o) + ")");
      box.append(l);
    }
  };
  $("opcodes").open = false;
}

// ---- Hovering over the diagram

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;

function nearest(u) {
  const { left, top } = u.cursor;
  if (left < 0 || !view.shown || view.shown.blocks) return null;
  let best = null, least = 14 * 14;
  const it = view.shown;
  for (let j = 0; j < it.points.length; j += 2) {
    const p = it.points[j], i = it.points[j + 1];
    if (isHidden(p, i)) continue;
    const dx = u.valToPos(p.at[i] / 1e9, "x") - left, dy = u.valToPos(p.seq[i], "y") - top, d = dx * dx + dy * dy;
    if (d < least) { least = d; best = [p, i]; }
  }
  return best;
}

// indexOf returns the index in the connection of a point of a chunk.
function indexOf(p, i) {
  for (const [k, chunk] of view.conn.chunks) if (chunk === p) return k * meta.chunk_points + i;
  return -1;
}

function hover(u) {
  const near = nearest(u);
  if (!near) {
    tip.hidden = true;
    if (view.shown && view.shown.blocks && u.cursor.left >= 0) {
      tip.hidden = false;
      tip.textContent = "Zoom in to see each packet. PSN " + wirePSN(Math.round(u.posToVal(u.cursor.top, "y"))) + " at " + u.posToVal(u.cursor.left, "x").toFixed(9) + " s";
    }
  } else {
    const index = indexOf(...near);
    tip.textContent = view.conn.line(index) || "packet " + near[0].no[near[1]];
    tip.hidden = false;
  }
  if (tip.hidden) return;
  const { left, top } = u.cursor, over = u.over;
  tip.style.left = Math.min(over.offsetLeft + left + 14, Math.max(0, $("psn").clientWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = over.offsetTop + top + 16 + "px";
}

// ---- Ladder

const rung = 30, maxHeight = 8e6, printed = 200; // packets on paper

// list returns the indexes of the packets in the window that no filter leaves out, as a range if
// they are all of it. It returns null while they are unpacked.
function list() {
  if (view.ladder) return view.ladder;
  const c = view.conn, [from, to] = c.range(view.t0, view.t1);
  if (isFiltered() || view.hidden.size) {
    const found = [];
    const whole = visible((p, i, k) => { if (!isHidden(p, i)) found.push(k * meta.chunk_points + i); });
    return whole ? view.ladder = { n: found.length, at: j => found[j], find: x => found.indexOf(x) } : null;
  }
  if (from === to) return view.ladder = { n: 0, at: () => -1, find: () => -1 };
  const a = c.chunk(from), b = c.chunk(to - 1);
  if (!a || !b) return null;
  let first = 0, last = b.n - 1;
  while (first < a.n && a.at[first] < view.t0) first++;
  while (last >= 0 && b.at[last] > view.t1) last--;
  first += from * meta.chunk_points;
  last += (to - 1) * meta.chunk_points;
  const n = Math.max(0, last - first + 1);
  return view.ladder = { n, at: j => first + j, find: x => x >= first && x <= last ? x - first : -1 };
}

// value is a regular expression for the value of a field, which may have spaces within parentheses.
const value = String.raw`(?:"(?:[^"\\]|\\.)*"|[^\s("]*\((?:[^()]|\([^()]*\))*\)|\S+)`;
const remarkOf = line => { const m = / \[([^\]]*)\]$/.exec(line); return m ? m[1] : ""; };

function describe(line, p, i) {
  const get = key => { const m = new RegExp(` ${key}=(${value})`).exec(line); return m && m[1]; };
  const parts = [meta.opcodes[p.opcode[i]], "psn " + get("psn")];
  const syn = get("aeth\\.syndrome"), length = get("reth\\.length"), bytes = p.bytes[i];
  if (syn) parts.push(syn.replace(/^[^(]*\(|\)$/g, ""));
  if (syn) parts.push("msn " + get("aeth\\.msn"));
  if (length) parts.push("length " + length);
  if (bytes) parts.push(bytes + " B");
  if (get("ack_req") === "1") parts.push("ack_req");
  if (p.flags[i] & flagCE) parts.push("CE");
  return parts.join("  ");
}

function makeRung(index, top) {
  const c = view.conn, [p, i] = c.at(index), line = c.line(index);
  const row = document.createElement("div");
  row.className = "rung";
  row.setAttribute("role", "option");
  row.id = "rung" + index;
  row.dataset.index = index;
  row.style.top = top + "px";
  row.setAttribute("aria-selected", String(index === view.selected));
  if (!p || line === null) { row.textContent = "…"; return row; }
  const cell = (name, text) => { const d = document.createElement("span"); d.className = name; d.textContent = text; row.append(d); return d; };
  const no = p.no[i];
  cell("no", no);
  cell("time", (p.at[i] / 1e9).toFixed(9));
  cell("arrow " + (p.side[i] ? "l" : "r"), describe(line, p, i));
  const why = [...(violations.get(no) || []).map(v => v.rule + ": " + v.detail), ...(comments.get(no) || [])];
  cell("remark", why.length ? why.join("; ") : remarkOf(line)).title = why.join("\n");
  row.style.setProperty("--tone", "var(--" + series[p.cls[i]].key + ")");
  row.classList.toggle("red", p.flags[i] & (flagViolation | flagComment) ? true : false);
  row.classList.toggle("damaged", p.cls[i] === DAMAGED);
  row.title = line;
  return row;
}

function drawLadder() {
  const l = list(), box = $("ladder"), rows = $("rows");
  if (!l) return;
  if ("print" in document.documentElement.dataset) { printLadder(l); return; }
  const total = l.n * rung, height = Math.min(total, maxHeight);
  rows.style.height = height + "px";
  const page = box.clientHeight;
  if (view.scrollTo !== undefined && view.scrollTo !== null) {
    const j = l.find(view.scrollTo);
    view.scrollTo = null;
    if (j >= 0) {
      const top = toScroll(j * rung, total, height, page), now = box.scrollTop;
      const slack = toScroll((j + 1) * rung - page, total, height, page);
      if (top < now || slack > now) box.scrollTop = Math.max(0, toScroll(j * rung - page / 2, total, height, page));
    }
  }
  const at = height === total ? box.scrollTop : box.scrollTop / Math.max(1, height - page) * (total - page);
  const offset = at - box.scrollTop;
  const first = Math.max(0, Math.floor(at / rung) - 2), last = Math.min(l.n, Math.ceil((at + page) / rung) + 2);
  const made = [];
  for (let j = first; j < last; j++) made.push(makeRung(l.at(j), j * rung - offset));
  rows.replaceChildren(...made);
  if (view.selected >= 0) box.setAttribute("aria-activedescendant", "rung" + view.selected); else box.removeAttribute("aria-activedescendant");
  $("shown").textContent = count(l.n);
  if (view.selected >= 0) showPacket(view.selected);
}

const count = n => n.toLocaleString("en").replaceAll(",", "\u202f") + (n === 1 ? " packet." : " packets.");

// printLadder lays out those packets that are in sight, and some more.
function printLadder(l) {
  const sight = $("rows").querySelector(".rung"), from = sight ? Math.max(0, l.find(+sight.dataset.index)) : 0;
  const n = Math.min(printed, l.n - from), made = [];
  for (let j = 0; j < n; j++) made.push(makeRung(l.at(from + j), j * rung));
  $("rows").replaceChildren(...made);
  $("rows").style.height = n * rung + "px";
  $("shown").textContent = count(l.n) + (n < l.n ? " Printed are " + n + ", from number " + (from + 1) + " on." : "");
}

function toScroll(y, total, height, page) { return height === total ? y : y / Math.max(1, total - page) * (height - page); }

function showPacket(index) {
  const box = $("packet");
  const line = index >= 0 ? view.conn.line(index) : "";
  if (index < 0) { box.textContent = "Select a packet to see its headers."; return; }
  if (line === null) return;
  box.replaceChildren();
  const [p, i] = view.conn.at(index), no = p ? p.no[i] : -1;
  for (const v of violations.get(no) || []) why(v.rule + ": " + v.text + " [" + v.ref + "]: " + v.detail + " (" + v.party + ")");
  for (const c of comments.get(no) || []) why(c);
  for (const part of line.match(new RegExp(String.raw`[^\s=]+=${value}|\[.*\]$|\S+`, "g")) || []) {
    const f = document.createElement("span"), eq = part.indexOf("=");
    f.className = "field";
    if (eq > 0) {
      const k = document.createElement("i");
      k.textContent = part.slice(0, eq) + " ";
      f.append(k, part.slice(eq + 1));
    } else f.textContent = part;
    box.append(f, " ");
  }
  function why(text) { const w = document.createElement("span"); w.className = "why"; w.textContent = text; box.append(w); }
}

// ---- Events

document.addEventListener("click", e => {
  const b = e.target.closest("button.select");
  if (b) { open(+b.dataset.connection).then(() => $("view").scrollIntoView({ block: "start" })); return; }
  const g = e.target.closest("button.goto");
  if (g) goTo(+g.dataset.packet);
});

// goTo shows a packet by its number in the capture.
async function goTo(no) {
  let found = spots.get(no);
  if (!found) {
    for (const c of connections) {
      for (let k = 0; k < c.meta.chunks.length && !found; k++) {
        if (!c.chunks.get(k)) c.chunks.set(k, decodePoints(await unpack(c.meta.chunks[k][0]), c.meta.chunks[k][1]));
        const i = c.chunks.get(k).no.indexOf(no);
        if (i >= 0) found = [c.index, k * meta.chunk_points + i];
      }
      if (found) break;
    }
  }
  if (!found) return;
  await open(...found);
  $("ladder").scrollIntoView({ block: "nearest" });
}

$("find").addEventListener("input", e => {
  const words = e.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  document.querySelectorAll("#connections tbody tr[data-connection]").forEach(tr => {
    const text = tr.firstElementChild.textContent.toLowerCase();
    tr.hidden = !words.every(w => text.includes(w));
  });
});

const actions = { whole, in: () => scale(.5), out: () => scale(2), left: () => move(-.25), right: () => move(.25), previous: () => problem(-1), next: () => problem(1) };
for (const [id, f] of Object.entries(actions)) $(id).onclick = f;
const keys = { "+": "in", "=": "in", "-": "out", "0": "whole", ArrowLeft: "left", ArrowRight: "right", n: "next", p: "previous" };
$("psn").addEventListener("keydown", e => {
  const a = keys[e.key];
  if (!a || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  actions[a]();
});
$("psn").addEventListener("wheel", e => {
  if (!e.ctrlKey || !plots) return;
  e.preventDefault();
  const x = e.clientX - plots.psn.over.getBoundingClientRect().left;
  scale(e.deltaY > 0 ? 1.25 : .8, plots.psn.posToVal(x, "x") * 1e9);
}, { passive: false });
$("psn").addEventListener("click", () => {
  const near = plots && nearest(plots.psn);
  if (near) select(indexOf(...near), false);
});
$("psn").append(tip);
for (const id of ["from", "to"]) {
  $(id).addEventListener("change", () => {
    const a = Number($("from").value) * 1e9, b = Number($("to").value) * 1e9;
    if (Number.isFinite(a) && Number.isFinite(b) && a < b) zoom(a, b); else schedule();
    $(id).blur();
  });
}
$("ladder").addEventListener("scroll", () => requestAnimationFrame(() => view.conn && drawLadder()));
$("ladder").addEventListener("click", e => { const r = e.target.closest(".rung"); if (r) select(+r.dataset.index, false); });
$("ladder").addEventListener("mouseover", e => { const r = e.target.closest(".rung"); if (r && view.selected < 0) showPacket(+r.dataset.index); });
$("ladder").addEventListener("keydown", e => {
  const l = view.conn && list(), step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[e.key];
  if (!l || !l.n) return;
  if (e.key === "Enter" && view.selected >= 0) { e.preventDefault(); select(view.selected, true); return; }
  if (!step) return;
  e.preventDefault();
  const j = view.selected >= 0 ? l.find(view.selected) : -1;
  select(l.at(Math.max(0, Math.min(l.n - 1, j < 0 ? 0 : j + step))), false);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);
const redraw = () => { if (view.conn) { draw(); for (const p of Object.values(plots)) p.redraw(false, true); } };
let scrolled = 0; // before the ladder became as short as it is on paper
addEventListener("beforeprint", () => { scrolled = $("ladder").scrollTop; document.documentElement.dataset.print = ""; redraw(); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; redraw(); $("ladder").scrollTop = scrolled; });

// What tests read.
globalThis.softroceReport = { meta, view, connections, open, select, zoom, isBusy: () => scheduled || !!(view.conn && view.conn.loading) };

if (connections.length) open(0);
})();
