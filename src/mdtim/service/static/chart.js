// One column of a result: what was observed, what was filled, and the band around it.

import { element, picture } from "./svg.js";

const LEFT = 56;
const RIGHT = 12;
const TOP = 10;
const HEIGHT = 300;
const BOTTOM = 26;

export function drawChart(place, data) {
  const width = Math.max(320, Math.round(place.clientWidth));
  const { positions, observed, filled, low, high, labels } = data;
  const number = filled.filter((value) => value !== null).length;
  const series = data.series === null ? "" : ` of ${data.series}`;
  const words = `${data.title}${series}, from ${labels[0]} to ${labels[labels.length - 1]}; ` +
    `${number} of the ${labels.length} steps drawn are filled.`;
  const svg = picture(width, HEIGHT + BOTTOM, `Column ${data.column}`, words);
  const x = scale([positions[0], positions[positions.length - 1]], LEFT, width - RIGHT);
  const marks = levels([observed, filled, low, high].flat().filter((value) => value !== null));
  const y = scale([marks[0], marks[marks.length - 1]], HEIGHT - TOP, TOP);
  for (const mark of marks) {
    svg.append(
      element("line", { x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark), class: "axis" }),
      element("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, inWords(mark)),
    );
  }
  const known = observed.map((value, at) => value ?? filled[at]);
  const band = (bound) => bound.map((value, at) => value ?? observed[at]);
  const at = (values) => (step) => `${x(positions[step]).toFixed(1)},${y(values[step]).toFixed(1)}`;
  for (const [begin, end] of runs(filled)) {
    // A gap hangs between its neighbours, so that it does not float.
    const steps = range(
      begin > 0 && known[begin - 1] !== null ? begin - 1 : begin,
      end < known.length && known[end] !== null ? end + 1 : end,
    );
    const outline = [...steps.map(at(band(low))), ...steps.reverse().map(at(band(high)))];
    svg.append(element("polygon", { points: outline.join(" "), class: "band" }));
    svg.append(element("polyline", { points: steps.map(at(known)).join(" "), class: "line filled" }));
    if (end - begin === 1) svg.append(dot(x(positions[begin]), y(filled[begin]), "filled"));
  }
  for (const [begin, end] of runs(observed)) {
    const points = range(begin, end).map(at(observed)).join(" ");
    svg.append(element("polyline", { points, class: "line observed" }));
    if (end - begin === 1) svg.append(dot(x(positions[begin]), y(observed[begin]), "observed"));
  }
  const places = [[0, "start"], [labels.length - 1, "end"]];
  if (width > 520) places.push([labels.length >> 1, "middle"]); // three do not fit on a phone
  for (const [step, anchor] of places) {
    const attributes = { x: x(positions[step]), y: HEIGHT + 12, "text-anchor": anchor };
    svg.append(element("text", attributes, labels[step]));
  }
  place.replaceChildren(svg);
}

function dot(cx, cy, kind) {
  return element("circle", { cx, cy, r: 2.5, class: `dot ${kind}` });
}

function scale([from, to], start, end) {
  const length = to - from || 1;
  return (value) => start + ((value - from) / length) * (end - start);
}

// Round numbers that enclose the values.
function levels(values) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const rough = (most - least || Math.abs(most) || 1) / 4;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
  const first = Math.floor(least / step);
  const last = Math.max(Math.ceil(most / step), first + 1);
  return range(first, last + 1).map((count) => count * step);
}

function inWords(value) {
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(1) : String(Number(value.toPrecision(6)));
}

// Stretches [begin, end) of values that are there.
function runs(values) {
  const found = [];
  let begin = null;
  for (let step = 0; step <= values.length; step += 1) {
    const there = step < values.length && values[step] !== null;
    if (there && begin === null) begin = step;
    if (!there && begin !== null) {
      found.push([begin, step]);
      begin = null;
    }
  }
  return found;
}

function range(begin, end) {
  return Array.from({ length: end - begin }, (_, count) => begin + count);
}
