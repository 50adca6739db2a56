// The map of missing cells: a stripe per column, marks where cells are missing.

import { element, picture, shorten, widthOf } from "./svg.js";

const ROW = 20;
const NAMES = 112; // at the least, for the longest names
const MARGIN = 12;
const SPACE = 8;

export function drawMap(place, table) {
  const width = Math.max(320, Math.round(place.clientWidth));
  const { columns, shares, ticks, several_series: several } = table.map;
  const longest = Math.max(0, ...columns.map(widthOf)) + SPACE;
  const left = Math.min(longest, Math.max(NAMES, 0.3 * width));
  const inner = width - left - MARGIN;
  const bottom = ROW * columns.length;
  const most = columns.length === 0 ? "" : ` Most are missing in ${columns[0]}.`;
  const words = `${table.missing.toLocaleString("en")} of the cells are missing, ` +
    `${(100 * table.share).toFixed(1)} %.${most} The table below gives the numbers.`;
  const svg = picture(width, bottom + 26, "Map of missing cells along time", words);
  columns.forEach((name, row) => {
    const top = row * ROW;
    const label = element("text", { x: left - SPACE, y: top + 14, "text-anchor": "end" },
      shorten(name, left - SPACE));
    label.append(element("title", {}, name));
    const stripe = { x: left, y: top + 3, width: inner, height: ROW - 6, class: "stripe" };
    svg.append(label, element("rect", stripe), ...marks(shares[row], left, inner, top));
  });
  const places = ticks.map(([share, label]) => {
    const x = left + share * inner;
    const half = widthOf(label) / 2;
    return { x, share, label, half, center: Math.min(Math.max(x, half), width - half) };
  });
  const named = several ? withRoom(places) : evenly(places);
  for (const { x, share } of several ? places : named) {
    const top = several && share > 0 ? 0 : bottom; // where one series ends and the next begins
    const kind = several ? "border" : "axis";
    svg.append(element("line", { x1: x, x2: x, y1: top, y2: bottom + 5, class: kind }));
  }
  for (const { center, label } of named) {
    svg.append(element("text", { x: center, y: bottom + 19, "text-anchor": "middle" }, label));
  }
  place.replaceChildren(svg);
}

const follows = (before, after) =>
  after.center - after.half >= before.center + before.half + SPACE;

// Times: as many as find room at equal distances.
function evenly(places) {
  for (let stride = 1; stride < places.length; stride *= 2) {
    const chosen = places.filter((_, number) => number % stride === 0);
    if (chosen.slice(1).every((one, number) => follows(chosen[number], one))) return chosen;
  }
  return places.slice(0, 1);
}

// Names of series: each that finds room behind the last.
function withRoom(places) {
  const chosen = [];
  for (const one of places) {
    if (chosen.length === 0 || follows(chosen[chosen.length - 1], one)) chosen.push(one);
  }
  return chosen;
}

// Neighbouring stretches of one share become one mark; a single missing cell stays visible.
function marks(shares, left, inner, top) {
  const made = [];
  const step = inner / shares.length;
  for (let begin = 0, end; begin < shares.length; begin = end) {
    for (end = begin + 1; end < shares.length && shares[end] === shares[begin];) end += 1;
    if (shares[begin] === 0) continue;
    made.push(element("rect", {
      x: (left + begin * step).toFixed(1),
      y: top + 3,
      width: Math.max(1, (end - begin) * step).toFixed(1),
      height: ROW - 6,
      class: "gap",
      opacity: (0.3 + 0.7 * shares[begin]).toFixed(2),
    }));
  }
  return made;
}
