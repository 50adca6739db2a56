// The map of missing cells: a stripe per column, marks where cells are missing.

import { element, picture, shorten } from "./svg.js";

const ROW = 20;
const LABELS = 112;
const MARGIN = 12;

export function drawMap(place, table) {
  const width = Math.max(320, Math.round(place.clientWidth));
  const { columns, shares, ticks, several_series: several } = table.map;
  const inner = width - LABELS - MARGIN;
  const bottom = ROW * columns.length;
  const most = columns.length === 0 ? "" : ` Most are missing in ${columns[0]}.`;
  const words = `${table.missing.toLocaleString("en")} of the cells are missing, ` +
    `${(100 * table.share).toFixed(1)} %.${most} The table below gives the numbers.`;
  const svg = picture(width, bottom + 26, "Map of missing cells along time", words);
  columns.forEach((name, row) => {
    const top = row * ROW;
    const label = element("text", { x: LABELS - 8, y: top + 14, "text-anchor": "end" },
      shorten(name, 16));
    label.append(element("title", {}, name));
    const stripe = { x: LABELS, y: top + 3, width: inner, height: ROW - 6, class: "stripe" };
    svg.append(label, element("rect", stripe), ...marks(shares[row], inner, top));
  });
  let free = -Infinity;
  for (const [share, label] of ticks) {
    const x = LABELS + share * inner;
    const half = label.length * 3.3;
    const center = Math.min(Math.max(x, LABELS + half), width - half);
    if (center - half < free) continue;
    free = center + half + 12;
    const top = several && share > 0 ? 0 : bottom; // where one series ends and the next begins
    const kind = several ? "border" : "axis";
    svg.append(element("line", { x1: x, x2: x, y1: top, y2: bottom + 5, class: kind }));
    svg.append(element("text", { x: center, y: bottom + 19, "text-anchor": "middle" }, label));
  }
  place.replaceChildren(svg);
}

// Neighbouring stretches of one share become one mark; a single missing cell stays visible.
function marks(shares, inner, top) {
  const made = [];
  const step = inner / shares.length;
  for (let begin = 0, end; begin < shares.length; begin = end) {
    for (end = begin + 1; end < shares.length && shares[end] === shares[begin];) end += 1;
    if (shares[begin] === 0) continue;
    made.push(element("rect", {
      x: (LABELS + begin * step).toFixed(1),
      y: top + 3,
      width: Math.max(1, (end - begin) * step).toFixed(1),
      height: ROW - 6,
      class: "gap",
      opacity: (0.3 + 0.7 * shares[begin]).toFixed(2),
    }));
  }
  return made;
}
