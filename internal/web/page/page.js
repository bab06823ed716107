"use strict";
// The script of the live page. All text of the daemon becomes text nodes.
(() => {
const $ = id => document.getElementById(id);
const make = (tag, text, more) => Object.assign(document.createElement(tag), { textContent: text }, more);
const stateInterval = 1000, psnInterval = 250, kept = 1200; // milliseconds, points of the diagram

// ---- Requests

// request returns the JSON of a reply. An error has the line that the daemon replied.
async function request(path, options = {}) {
  const token = $("token").value.trim(), headers = token ? { Authorization: "Bearer " + token } : {};
  let reply;
  try { reply = await fetch(path, { ...options, headers }); } catch { throw new Error("The daemon does not reply."); }
  const text = await reply.text();
  if (!reply.ok) throw new Error(text.trim());
  return text ? JSON.parse(text) : null;
}

function show(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message : "";
}

async function act(path, options) {
  try { await request(path, options); show(null); } catch (e) { show(e); return; }
  await update();
}

// ---- Tables

function drawTables(tables) {
  tables.forEach((t, k) => {
    let section = $("tables").children[k];
    if (!section) {
      section = document.createElement("section");
      section.append(make("h2", t.name), make("div", "", { className: "scroll" }));
      $("tables").append(section);
    }
    section.lastChild.replaceChildren(t.rows.length > 1 ? drawTable(t) : make("p", "There is none.", { className: "hint" }));
  });
}

function drawTable(t) {
  const table = document.createElement("table");
  const head = document.createElement("tr");
  head.append(...t.rows[0].map(c => make("th", c, { scope: "col" })));
  table.createTHead().append(head);
  const body = table.createTBody();
  for (const cells of t.rows.slice(1)) {
    const row = body.insertRow();
    if (t.name === "Queue pairs") row.className = cells[3];
    cells.forEach((c, i) => {
      const cell = row.insertCell();
      if (i === 0 && t.name === "Queue pairs") cell.append(make("button", c, { type: "button", className: "select", title: "PSNs over time", onclick: () => follow(c) }));
      else cell.textContent = c;
    });
  }
  return table;
}

// ---- Captures

function drawCaptures(captures) {
  const rows = captures.map(c => {
    const row = document.createElement("p");
    row.className = "tools";
    const button = (text, f) => make("button", text, { type: "button", onclick: f });
    row.append(make("span", (c.nic || "all NICs") + (c.filter ? ", " + c.filter : "") + ": " + c.packets + " packets" + (c.lost ? ", " + c.lost + " lost" : "") + (c.error ? ": " + c.error : "")));
    if (c.running) row.append(button("Stop", () => act("captures/" + c.id + "/stop", { method: "POST" })));
    else row.append(make("a", "Download", { href: "captures/" + c.id + "/packets.pcapng" }), make("a", "Report", { href: "captures/" + c.id + "/report", target: "_blank", rel: "noopener" }));
    row.append(button("Remove", () => act("captures/" + c.id, { method: "DELETE" })));
    return row;
  });
  $("captures").replaceChildren(...rows);
}

$("start").onclick = () => act("captures", { method: "POST", body: JSON.stringify({ nic: $("nic").value, filter: $("filter").value }) });

// ---- State

let updates = 0, failed = false;
async function update() {
  let s;
  try { s = await request("state"); } catch (e) { show(e); setRole(false); failed = true; return; }
  if (failed) show(null); // errors of actions stay
  failed = false;
  $("summary").textContent = s.summary;
  drawTables(s.tables);
  setRole(s.operator);
  drawCaptures(s.captures || []);
  const nics = $("nic");
  if (nics.options.length - 1 !== s.nics.length) nics.append(...s.nics.slice(nics.options.length - 1).map(n => make("option", n, { value: n })));
  updates++;
}

function setRole(operator) {
  $("role").textContent = operator ? "You are the operator." : "Without it you look, and PSNs are hidden.";
  $("start").disabled = $("filter").disabled = $("nic").disabled = !operator;
  $("needs-token").hidden = operator;
}

$("token").addEventListener("change", () => { show(null); update(); });

// ---- PSNs over time

let plot = null, followed = null, data = null;
const css = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// unwrap counts a PSN on from the one before: 24 bits wrap.
function unwrap(psn, before) {
  const size = 0x1000000, d = (((psn - before) % size) + size) % size;
  return before + (d < size / 2 ? d : d - size);
}

function follow(name) {
  const [, nic, qpn] = /^(.*)\/(\d+)$/.exec(name);
  followed = { nic, qpn, first: null, last: null };
  data = [[], [], [], [], []];
  if (plot) plot.destroy();
  $("psns").hidden = false;
  $("psn-title").textContent = "PSNs of queue pair " + qpn + " of " + nic + ", counted from the first sample";
  const line = (color, more) => ({ stroke: () => css(color), width: 1.6, points: { show: false }, ...more });
  const look = { stroke: () => css("soft"), grid: { stroke: () => css("line"), width: 1 }, ticks: { stroke: () => css("line"), width: 1 } };
  plot = new uPlot({ width: Math.max(300, $("plot").clientWidth - 2), height: 280, legend: { show: false }, scales: { x: { time: true } },
    axes: [look, { ...look, size: 84, values: (u, v) => v.map(p => p.toLocaleString("en").replaceAll(",", "\u202f")) }],
    series: [{}, line("next"), line("unacked", { dash: [6, 4] }), line("expected"),
      { stroke: () => css("resent"), fill: () => css("resent"), paths: () => null, points: { show: true, size: 9 } }] }, data, $("plot"));
  $("psns").scrollIntoView({ block: "nearest" });
}

$("psn-close").onclick = () => { followed = null; $("psns").hidden = true; };
addEventListener("resize", () => { if (plot) plot.setSize({ width: Math.max(300, $("plot").clientWidth - 2), height: 280 }); });

async function sample() {
  const f = followed;
  if (!f || document.hidden) return;
  let p;
  try { p = await request("psn?nic=" + encodeURIComponent(f.nic) + "&qpn=" + f.qpn); } catch (e) {
    if (followed === f) { followed = null; show(e); }
    return;
  }
  if (followed !== f || f.last && p.at === f.last.at) return;
  if (!f.first) f.first = f.last = p;
  const b = f.last, next = unwrap(p.next, b.next), unacked = unwrap(p.unacked, next), expected = unwrap(p.expected, b.expected);
  const sent = next - f.first.next, acked = unacked - f.first.next, received = expected - f.first.expected;
  [p.at, sent, acked, received, p.retransmitted > b.retransmitted ? acked : null].forEach((v, i) => { data[i].push(v); if (data[i].length > kept) data[i].shift(); });
  f.last = { at: p.at, next, expected, retransmitted: p.retransmitted };
  plot.setData(data);
}

// ---- Timers: a request follows the reply to the one before, so that a slow daemon is not asked more.

async function every(interval, f) {
  for (;;) {
    await f();
    await new Promise(next => setTimeout(next, interval));
  }
}
every(stateInterval, async () => { if (!document.hidden) await update(); });
every(psnInterval, sample);

// What tests read.
globalThis.softrocePage = { updates: () => updates, data: () => data };
})();
