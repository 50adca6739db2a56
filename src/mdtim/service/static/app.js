// The page: a table comes in, its gaps are shown, it is filled, the result is shown.

import * as api from "./api.js";
import { drawChart } from "./chart.js";
import { drawMap } from "./map.js";

const POLL_MILLISECONDS = 400;
const at = (id) => document.getElementById(id);
// job: of the result that is shown; work: what is under way, { id } once the service has given it one.
const state = { file: null, table: null, job: null, work: null, pictures: [], turn: 0 };

// -- the table -------------------------------------------------------------------------------

async function takeFile(file) {
  stopWork().catch(() => {}); // the service forgets it in any case, if later
  state.file = file;
  state.job = null;
  for (const id of ["gaps", "choices", "work", "result"]) at(id).hidden = true;
  at("facts").textContent = `Reading ${file.name}…`;
  await look({}, true);
}

async function look(choices, isNew) {
  const turn = state.turn += 1;
  const found = await api.preview(state.file, choices);
  if (turn !== state.turn) return; // another table was chosen meanwhile
  state.table = found.table;
  at("facts").textContent = inWords(found);
  offer(at("time"), found.names, found.time, "found by itself");
  offer(at("id"), found.names, found.id, "one series");
  if (isNew) offerColumns(found.numeric);
  at("choices").hidden = false;
  at("gaps").hidden = found.table === null;
  at("fill").disabled = !canFill();
  at("choice-note").textContent = found.problem ??
    (found.table.missing === 0 ? "Nothing is missing." : found.notes.join(" "));
  if (found.table !== null) showGaps(found.table);
}

const canFill = () => state.work === null && state.table !== null && state.table.missing > 0;

function inWords(found) {
  const size = `${state.file.name}: ${count(found.rows, "row")}, ${count(found.names.length, "column")}`;
  if (found.table === null) return `${size}.`;
  const { missing, share, series, skipped_steps: skipped } = found.table;
  const several = series > 1 ? `, ${count(series, "series", "series")}` : "";
  const without = skipped > 0 ? `, with those of ${count(skipped, "step")} that no row has` : "";
  const gaps = `${count(missing, "cell")} missing (${(100 * share).toFixed(1)} %)${without}`;
  return `${size}${several}; ${gaps}.`;
}

function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

function showGaps(table) {
  drawMap(at("map"), table);
  fillTable(at("gap-table"), table.columns.map((column) => [
    column.column, column.missing.toLocaleString("en"), `${(100 * column.share).toFixed(1)} %`,
    column.gaps.toLocaleString("en"), column.longest_gap.toLocaleString("en"),
  ]));
}

function fillTable(table, rows) {
  table.tBodies[0].replaceChildren(...rows.map(([name, ...cells]) => {
    const row = document.createElement("tr");
    const head = withText("th", name);
    head.scope = "row";
    row.append(head, ...cells.map((text) => withText("td", text)));
    return row;
  }));
}

function withText(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function offer(select, names, chosen, nothing) {
  const options = names.map((name) => new Option(name, name, false, name === chosen));
  const none = new Option(nothing, "", false, chosen === null);
  none.dataset.none = "";
  select.replaceChildren(none, ...options);
}

const chosen = (select) => select.selectedIndex > 0 ? select.value : null;

function offerColumns(names) {
  const boxes = names.map((name) => {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.value = name;
    label.append(box, withText("span", name));
    return label;
  });
  at("columns").replaceChildren(withText("legend", "Columns"), ...boxes);
}

// A model fills as it was fitted, so there is nothing to adapt.
const isAdapting = () => chosen(at("model")) === null && at("adapt").checked;

function offerAdapting() {
  at("adapt-field").hidden = chosen(at("model")) !== null;
  at("minutes-field").hidden = !isAdapting();
  at("minutes").disabled = !isAdapting(); // a field that nobody sees must not stop the form
}

function tableChoices() {
  const choices = [["time", chosen(at("time"))], ["id", chosen(at("id"))]];
  return choices.filter(([, value]) => value !== null);
}

// -- the work --------------------------------------------------------------------------------

async function fill() {
  const boxes = [...at("columns").querySelectorAll("input")];
  const wanted = boxes.filter((box) => box.checked);
  if (wanted.length === 0) throw new Error("Choose at least one column to fill.");
  const choices = tableChoices();
  if (wanted.length < boxes.length) choices.push(...wanted.map((box) => ["columns", box.value]));
  if (chosen(at("model")) !== null) choices.push(["model", at("model").value]);
  if (isAdapting()) choices.push(["adapt", "true"], ["max_minutes", at("minutes").value]);
  const work = state.work = { id: null };
  at("fill").disabled = true;
  at("result").hidden = true;
  at("bar").removeAttribute("value");
  at("work-text").textContent = "Sending the table…";
  at("work").hidden = false;
  at("cancel").focus();
  try {
    const job = await api.createJob(state.file, choices);
    work.id = job.id;
    if (state.work !== work) await api.deleteJob(job.id); // cancelled while it was sent
    else await showResult(await follow(job, work));
  } catch (error) {
    if (state.work === work) throw error; // else nobody waits for it
  } finally {
    if (state.work === work) stopWork().catch(() => {});
  }
}

// The job when it is done; an error where it failed or is no longer wanted.
async function follow(job, work) {
  while (job.state === "queued" || job.state === "running") {
    at("bar").value = job.share;
    at("work-text").textContent = progressInWords(job);
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
    if (state.work !== work) throw new Error("cancelled");
    job = await api.readJob(job.id);
  }
  if (job.state !== "done") throw new Error(job.message);
  work.id = null; // what is finished need not be cancelled
  return job;
}

function progressInWords(job) {
  if (job.state === "queued") {
    return job.ahead === 0 ? "Next in line…" : `Waiting; ${count(job.ahead, "job")} ahead.`;
  }
  const left = job.seconds_left;
  if (left === null) return `${job.text}…`;
  const rounded = left < 60 ? `${Math.max(1, Math.round(left))} s` : `${Math.round(left / 60)} min`;
  return `${job.text}; about ${rounded} left.`;
}

async function cancel() {
  const deleted = stopWork();
  at("fill").focus();
  await deleted;
}

// End what is under way, here and at the service.
async function stopWork() {
  const work = state.work;
  state.work = null;
  at("work").hidden = true;
  at("fill").disabled = !canFill();
  if (work !== null && work.id !== null) await api.deleteJob(work.id);
}

// -- the result ------------------------------------------------------------------------------

async function showResult(job) {
  const chart = await api.readChart(job.id);
  state.job = job.id;
  const { filled, missing, steps, validation_mae: own, linear_mae: linear } = job.facts;
  const left = missing - filled;
  const score = own === null || linear === null ? "" :
    ` On held-out cells the mean error is ${own.toPrecision(3)} of a standard deviation; ` +
    `linear interpolation has ${linear.toPrecision(3)}.`;
  at("result-facts").textContent = `${count(filled, "cell")} filled` +
    `${left > 0 ? `, ${left.toLocaleString("en")} left missing` : ""}` +
    `${steps > 0 ? `, after ${count(steps, "step")} of training on this table` : ""}.${score}`;
  at("notes").replaceChildren(...job.notes.map((note) => withText("li", note)));
  state.pictures = chart.pictures;
  at("column").replaceChildren(...chart.columns.map((name) => new Option(name, name)));
  at("open-report").hidden = api.hasToken();
  at("open-report").href = api.reportPath(job.id);
  at("result").hidden = false;
  offerViews();
  at("result").focus();
  at("result").scrollIntoView({ block: "nearest" });
}

function offerViews() {
  const options = state.pictures.flatMap((picture, number) => {
    if (picture.column !== at("column").value) return [];
    const series = picture.series === null ? "" : `${picture.series}: `;
    return [new Option(`${series}${picture.title}`, String(number))];
  });
  at("view").replaceChildren(...options);
  showPicture();
}

function showPicture() {
  if (at("view").options.length === 0) {
    at("chart").replaceChildren();
    fillTable(at("cell-table"), []);
    return;
  }
  const picture = state.pictures[Number(at("view").value)];
  drawChart(at("chart"), picture);
  const { labels, filled, low, high } = picture;
  fillTable(at("cell-table"), labels.flatMap((label, step) => filled[step] === null ? [] :
    [[label, String(filled[step]), String(low[step]), String(high[step])]]));
}

async function download(kind) {
  const blob = await api.readFile(state.job, kind);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = kind === "report" ? "report.html" : `filled.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // some browsers begin to read late
}

// -- wiring ----------------------------------------------------------------------------------

// Every action clears the last message and shows its own if it fails.
function action(work) {
  return async (event) => {
    event?.preventDefault();
    at("alert").hidden = true;
    try {
      await work(event);
    } catch (error) {
      at("alert").textContent = error.message.charAt(0).toUpperCase() + error.message.slice(1);
      at("alert").hidden = false;
      at("alert").scrollIntoView({ block: "nearest" });
      if (at("facts").textContent.endsWith("…")) at("facts").textContent = "No table yet.";
      if (error instanceof api.TokenNeeded) {
        at("token-form").hidden = false;
        at("token").focus();
      }
    }
  };
}

const takeExample = async () => takeFile(await api.readExample());

async function start() {
  const example = await api.readExample();
  if (state.file === null) await takeFile(example); // unless a table was dropped meanwhile
  const models = await api.readModels();
  at("model-field").hidden = models.length === 0;
  offer(at("model"), models.map((model) => model.name), null, "the pretrained network");
  offerAdapting();
}

at("file").addEventListener("change", action(async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (file !== undefined) await takeFile(file);
}));
// A file may be dropped anywhere: beside the box the browser would leave the page to show it.
const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
for (const name of ["dragenter", "dragover"]) {
  window.addEventListener(name, (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    at("drop").classList.add("over");
  });
}
window.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) at("drop").classList.remove("over");
});
const takeDropped = action((event) => takeFile(event.dataTransfer.files[0]));
window.addEventListener("drop", (event) => {
  if (!holdsFile(event)) return;
  at("drop").classList.remove("over");
  takeDropped(event);
});
at("example").addEventListener("click", action(takeExample));
at("time").addEventListener("change", action(() => look(tableChoices(), false)));
at("id").addEventListener("change", action(() => look(tableChoices(), false)));
at("model").addEventListener("change", offerAdapting);
at("adapt").addEventListener("change", offerAdapting);
at("choices").addEventListener("submit", action(fill));
at("cancel").addEventListener("click", action(cancel));
at("column").addEventListener("change", offerViews);
at("view").addEventListener("change", showPicture);
for (const button of document.querySelectorAll("[data-download]")) {
  button.addEventListener("click", action(() => download(button.dataset.download)));
}
at("token-form").addEventListener("submit", action(async () => {
  api.useToken(at("token").value);
  at("token-form").hidden = true;
  await start();
}));
window.addEventListener("resize", () => {
  if (!at("gaps").hidden) drawMap(at("map"), state.table);
  if (!at("result").hidden) showPicture();
});
action(start)();
