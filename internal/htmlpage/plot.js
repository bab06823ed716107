"use strict";
// What the scripts of pages share: the look of axes, and the units of their values.
globalThis.softrocePlot = (() => {
// css returns a color of the page.
const css = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

const seconds = (u, splits, axis, space, incr) => splits.map(v => v.toFixed(Math.max(0, Math.min(9, -Math.floor(Math.log10(incr))))));

// units returns a value in the largest unit that leaves at least 1.
function units(v, step, names) {
  let k = 0;
  while (Math.abs(v) >= step && k < names.length - 1) { v /= step; k++; }
  return +v.toPrecision(3) + " " + names[k];
}
const bits = v => units(v, 1000, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"]);
const octets = v => units(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

// axes returns those of a diagram over time in seconds.
function axes(values, size) {
  const look = { stroke: () => css("soft"), grid: { stroke: () => css("grid"), width: 1 }, ticks: { stroke: () => css("grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  return [{ ...look, values: seconds, space: 110 }, { ...look, values, size }];
}

return { css, units, bits, octets, axes };
})();
