// Small pieces for drawing. Text goes in as text, never as markup.

const NAMESPACE = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, text = null) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

export function picture(width, height, title, description) {
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", `${title}. ${description}`);
  svg.append(element("title", {}, title));
  return svg;
}

export function shorten(text, length) {
  const letters = [...text];
  return letters.length <= length ? text : `${letters.slice(0, length - 1).join("")}…`;
}
