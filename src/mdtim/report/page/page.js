"use strict";
// Draws the charts of a report, keeps those of the columns at one range, follows light and dark.
(() => {
  Bokeh.set_log_level("warn");
  const { figures, lines } = JSON.parse(document.getElementById("charts").textContent);
  const elements = [...document.querySelectorAll(".chart")];
  const drawn = new Map(); // element → plot
  const inView = new Set();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const shown = document.getElementById("shown");
  const NARROW = 480, SHORT = 12; // pixels of a chart, and letters of a name on it
  // Range of the axis that holds everything, and the one that is shown.
  const whole = shown ? [Number(shown.dataset.start), Number(shown.dataset.end)] : [0, 1];
  let range = whole;

  // -- colours: a tag `line_color:accent` names a property and one of the page's colours

  function paint(element, plot) {
    const style = getComputedStyle(document.documentElement);
    for (const model of plot.references()) {
      for (const tag of model.tags ?? []) {
        const [property, name] = tag.split(":");
        const colour = style.getPropertyValue(`--${name}`).trim();
        if (property === "palette") {
          model.palette = model.palette.map((_, level, all) => {
            if (level === 0) return style.getPropertyValue("--grid").trim();
            const alpha = Math.round(255 * (0.25 + 0.75 * level / (all.length - 1)));
            return colour + alpha.toString(16).padStart(2, "0");
          });
        } else {
          model[property] = colour;
        }
      }
    }
    element.classList.toggle("dark", dark.matches);
  }

  // -- the shared range

  function fit(plot) {
    // Show what lies in the range at its full height.
    const [start, end] = range;
    let low = Infinity, high = -Infinity;
    const hold = (value) => {
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const { data_source } of plot.renderers) {
      const { x, ...columns } = Object.fromEntries(Object.entries(data_source.data));
      const isLine = ["observed", "filled"].includes(data_source.name);
      for (const y of Object.values(columns)) {
        for (let i = 0; i < x.length; i++) {
          if (!isFinite(y[i])) continue;
          if (x[i] >= start && x[i] <= end) hold(y[i]);
          if (!isLine || i === 0 || !isFinite(y[i - 1])) continue;
          // A line that enters or leaves the range does so at a height of its own.
          for (const edge of range) {
            if (x[i - 1] >= edge || x[i] <= edge) continue;
            hold(y[i - 1] + (y[i] - y[i - 1]) * (edge - x[i - 1]) / (x[i] - x[i - 1]));
          }
        }
      }
    }
    if (low > high) return;
    const margin = high > low ? 0.06 * (high - low) : 0.05 * Math.abs(high) || 1;
    plot.y_range.setv({ start: low - margin, end: high + margin });
  }

  function follow(element) {
    const plot = drawn.get(element);
    if (!plot || plot.name !== "line") return;
    const { start, end } = plot.x_range;
    if (start !== range[0] || end !== range[1]) plot.x_range.setv({ start: range[0], end: range[1] });
    fit(plot);
  }

  function place(value) {
    if (!shown.dataset.timed) return `step ${Math.round(value).toLocaleString("en")}`;
    return new Date(value).toISOString().slice(0, 16).replace("T", " ");
  }

  function show(first, last) {
    // No further away than the data are long, and no closer than one can count on.
    const reach = whole[1] - whole[0];
    const start = Math.max(first, whole[0] - reach), end = Math.min(last, whole[1] + reach);
    if (end - start > 1e-7 * reach) range = [start, end];
    inView.forEach(follow);
    const map = drawn.get(document.getElementById("map"));
    const box = map?.select_one("view");
    const all = range[0] <= whole[0] && range[1] >= whole[1];
    box?.setv({ left: range[0], right: range[1], visible: !all });
    shown.textContent = `${place(range[0])} to ${place(range[1])}`;
  }

  function move(how) {
    const [start, end] = range, size = end - start, middle = (start + end) / 2;
    if (how === "earlier") show(start - size / 4, end - size / 4);
    if (how === "later") show(start + size / 4, end + size / 4);
    if (how === "in") show(middle - size / 4, middle + size / 4);
    if (how === "out") show(middle - size, middle + size);
    if (how === "all") show(...whole);
  }

  // -- drawing: what is in view first, the rest when there is time, so that it can be printed

  const KINDS = { u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

  function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed.slice(3)), (letter) => letter.charCodeAt(0));
    return new KINDS[packed.slice(0, 2)](bytes.buffer);
  }

  function dataOf({ first, unit, x, ...columns }) {
    let place = first;
    const numbers = unpack(x);
    const places = unit ? Float64Array.from(numbers, (count) => place += count * unit) : numbers;
    const heights = Object.entries(columns).map(([name, packed]) => [name, unpack(packed)]);
    return { x: places, ...Object.fromEntries(heights) };
  }

  function quieten(root) {
    // The drawing has no words and no name: what can be focused and read is the chart around it.
    for (const node of root.querySelectorAll("*")) {
      node.removeAttribute("tabindex");
      if (node.shadowRoot) quieten(node.shadowRoot);
    }
  }

  function shortenNames(plot) {
    // On a telephone the strips need the room; the table of columns has the names whole.
    for (const label of plot.left[0].major_label_overrides.values()) {
      if (label.text.length > SHORT) label.text = `${label.text.slice(0, SHORT - 1)}…`;
    }
  }

  async function draw(element) {
    if (drawn.has(element)) return;
    drawn.set(element, null);
    // All columns share one figure; each gives it data of its own.
    const sources = lines[element.id];
    const item = sources ? structuredClone(figures.line) : figures[element.id];
    const views = await Bokeh.embed.embed_item(item, element);
    const plot = views.roots[0].model;
    if (sources) {
      const own = new Set(plot.renderers.map((renderer) => renderer.data_source));
      for (const source of own) source.data = dataOf(sources[source.name]);
    }
    drawn.set(element, plot);
    if (plot.name === "map" && element.clientWidth < NARROW) shortenNames(plot);
    quieten(element);
    element.firstElementChild.ariaHidden = "true";
    paint(element, plot);
    if (plot.name !== "line") return;
    follow(element);
    const report = () => {
      const { start, end } = plot.x_range;
      if (start !== range[0] || end !== range[1]) show(start, end);
    };
    plot.x_range.properties.start.change.connect(report);
    plot.x_range.properties.end.change.connect(report);
  }

  async function drawRest() {
    for (const element of elements) {
      if (element.closest("details:not([open])")) continue; // drawn when it is opened
      await draw(element);
      await new Promise((next) => setTimeout(next, 0));
    }
    document.documentElement.dataset.drawn = "all";
  }

  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      inView[isIntersecting ? "add" : "delete"](target);
      if (isIntersecting) draw(target).then(() => follow(target));
    }
  }, { rootMargin: "200px" });
  elements.forEach((element) => observer.observe(element));
  if (shown) show(...whole);
  setTimeout(drawRest, 300);
  dark.addEventListener("change", () => drawn.forEach((plot, element) => plot && paint(element, plot)));

  // What is scrolled to must not end up below the bar, which is as high as its words need.
  const bar = document.querySelector(".controls");
  if (bar) {
    new ResizeObserver(() => {
      document.documentElement.style.scrollPaddingTop = `${bar.offsetHeight + 12}px`;
    }).observe(bar);
  }

  // -- buttons, keys and the wheel

  const keys = { ArrowLeft: "earlier", ArrowRight: "later", "+": "in", "=": "in", "-": "out", 0: "all" };
  for (const element of elements) {
    element.addEventListener("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(keys[event.key]);
    });
    // The wheel scrolls the page, as everywhere; with Ctrl it zooms.
    element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) event.stopPropagation();
    }, { capture: true });
  }
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    const { move: how, show: id, from, to } = button.dataset;
    if (how) move(how);
    if (!id) return;
    show(Number(from), Number(to));
    goTo(document.getElementById(id));
  });

  // -- to a column by its name

  function goTo(element) {
    const late = element.closest("details");
    if (late) late.open = true;
    (element.closest(".line") ?? element).scrollIntoView();
    element.focus({ preventScroll: true });
  }

  function goToNamed(find) {
    const wanted = find.value.trim().toLowerCase();
    const places = [...find.list.options];
    const has = (fits) => places.find((place) => fits(place.value.toLowerCase()));
    const found = has((name) => name === wanted) ?? has((name) => name.startsWith(wanted))
      ?? has((name) => name.includes(wanted));
    find.setCustomValidity(found ? "" : "No column has such a name.");
    if (find.reportValidity() && wanted) goTo(document.getElementById(found.dataset.place));
  }

  const find = document.getElementById("find");
  find?.form.addEventListener("submit", (event) => event.preventDefault());
  find?.addEventListener("keydown", ({ key }) => key === "Enter" && goToNamed(find));
  find?.addEventListener("input", ({ inputType }) => {
    find.setCustomValidity("");
    // Who picks a name from the list types nothing.
    if (find.value && (inputType ?? "insertReplacementText") === "insertReplacementText") goToNamed(find);
  });

  // -- tables that are wider than the page show that they go on

  const scrolls = [...document.querySelectorAll(".scroll")];
  const mark = (table) => table.classList.toggle(
    "cut", table.scrollLeft + table.clientWidth < table.scrollWidth - 1);
  const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => mark(target)));
  for (const table of scrolls) {
    widths.observe(table);
    table.addEventListener("scroll", () => mark(table), { passive: true });
  }
})();
