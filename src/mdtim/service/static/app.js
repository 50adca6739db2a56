// The page: a table comes in, its gaps are shown, it is filled, the result is shown.

import * as api from "./api.js";
import { drawChart } from "./chart.js";
import { drawMap } from "./map.js";
import { count, progressInWords, resultInWords, sentence, tableInWords } from "./words.js";

const POLL_MILLISECONDS = 400;
const at = (id) => document.getElementById(id);
const state = {
  file: null, // none where the page was loaded when its job was under way or done
  table: null,
  offersAll: false, // columns that hold no numbers too, as not all can be read together
  job: null, // of the result that is shown
  work: null, // what is under way, { id } once the service has given it one
  pictures: [],
  unfilled: {},
  turn: 0,
};

// -- the table -------------------------------------------------------------------------------

async function takeFile(file) {
  stopWork().catch(() => {}); // the service forgets it in any case, if later
  keepInAddress(null);
  state.file = file;
  state.job = null;
  for (const id of ["missing-values", "freq", "quantiles"]) at(id).value = "";
  at("infinite").checked = false;
  for (const id of ["gaps", "choices", "work", "result"]) at(id).hidden = true;
  at("facts").textContent = `Reading ${file.name}…`;
  await look({ isNew: true });
}

async function look({ isNew } = { isNew: false }) {
  const turn = state.turn += 1;
  let found = await api.preview(state.file, isNew ? [] : tableChoices());
  if (turn !== state.turn) return; // another table was chosen meanwhile
  if (isNew && found.problem !== null) {
    const columns = found.numeric.map((name) => ["columns", name]);
    if (columns.length > 0) found = await api.preview(state.file, columns);
    if (turn !== state.turn) return;
    state.offersAll = true;
    const others = found.names.filter((name) => name !== found.time && name !== found.id);
    offerColumns(others, columns.map(([, name]) => name));
  } else if (isNew || (state.offersAll && found.problem === null)) {
    state.offersAll = false;
    offerColumns(found.numeric);
  }
  show(found);
}

function show(found) {
  state.table = found.table;
  at("facts").textContent = tableInWords(state.file.name, found);
  offer(at("time"), found.names, found.time, "found by itself");
  offer(at("id"), found.names, found.id, "one series");
  at("choices").hidden = false;
  at("gaps").hidden = found.table === null;
  at("fill").disabled = !canFill();
  const notes = found.problem === null ? found.notes : [found.problem, ...found.notes];
  showNotes(at("table-notes"), notes);
  const labels = [...at("more").querySelectorAll("label")].map((one) => one.textContent.trim());
  if (labels.some((label) => notes.join().includes(`“${label}”`))) at("more").open = true;
  at("choice-note").textContent = found.table?.missing === 0 ? "Nothing is missing." : "";
  if (found.table !== null) showGaps(found.table);
}

const canFill = () => state.work === null && state.table !== null && state.table.missing > 0;

function showNotes(list, notes) {
  list.replaceChildren(...notes.map((note) => withText("li", sentence(note))));
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

// -- choices ---------------------------------------------------------------------------------

function offer(select, names, chosen, nothing) {
  const options = names.map((name) => new Option(name, name, false, name === chosen));
  const none = new Option(nothing, "", false, chosen === null);
  none.dataset.none = "";
  select.replaceChildren(none, ...options);
}

const chosen = (select) => select.selectedIndex > 0 ? select.value : null;

function offerColumns(names, ticked = names) {
  const boxes = names.map((name) => {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = ticked.includes(name);
    box.value = name;
    label.append(box, withText("span", name));
    return label;
  });
  at("columns").replaceChildren(withText("legend", "Columns"), ...boxes);
}

const boxes = () => [...at("columns").querySelectorAll("input")];

// Those that are ticked, where not all are.
function columnChoices() {
  const ticked = boxes().filter((box) => box.checked);
  return ticked.length < boxes().length ? ticked.map((box) => ["columns", box.value]) : [];
}

// A model fills as it was fitted, so there is nothing to adapt.
const isAdapting = () => chosen(at("model")) === null && at("adapt").checked;

function offerAdapting() {
  at("adapt-field").hidden = chosen(at("model")) !== null;
  at("minutes-field").hidden = !isAdapting();
  at("minutes").disabled = !isAdapting(); // a field that nobody sees must not stop the form
}

function tableChoices() {
  const named = [["time", chosen(at("time"))], ["id", chosen(at("id"))]];
  const choices = named.filter(([, value]) => value !== null);
  choices.push(...several("missing-values").map((number) => ["missing_values", number]));
  if (at("freq").value.trim() !== "") choices.push(["freq", at("freq").value.trim()]);
  if (at("infinite").checked) choices.push(["inf_as_missing", "true"]);
  if (state.offersAll) choices.push(...columnChoices());
  return choices;
}

const several = (id) => at(id).value.split(/[\s,;]+/).filter((part) => part !== "");

// -- the work --------------------------------------------------------------------------------

async function fill() {
  if (!boxes().some((box) => box.checked)) throw new Error("Choose at least one column to fill.");
  const choices = tableChoices();
  if (!state.offersAll) choices.push(...columnChoices());
  choices.push(...several("quantiles").map((level) => ["quantiles", level]));
  if (chosen(at("model")) !== null) choices.push(["model", at("model").value]);
  if (isAdapting()) choices.push(["adapt", "true"], ["max_minutes", at("minutes").value]);
  await attend("Sending the table…", () => api.createJob(state.file, choices));
}

// Wait for a job with the bar in view, and show its result.
async function attend(text, begin) {
  const work = state.work = { id: null };
  at("fill").disabled = true;
  at("result").hidden = true;
  at("choice-note").textContent = "";
  at("bar").removeAttribute("value");
  at("work-text").textContent = text;
  at("work").hidden = false;
  at("cancel").focus();
  try {
    const job = await begin();
    work.id = job.id;
    if (state.work !== work) await api.deleteJob(job.id); // cancelled while it was sent
    else {
      keepInAddress(job.id);
      await showResult(await follow(job, work));
    }
  } catch (error) {
    if (state.work === work) throw error; // else nobody waits for it
  } finally {
    // A job whose end is not known goes on, and a page loaded anew finds it by its address.
    if (state.work === work) endWork();
  }
}

// The job when it is done; an error where it failed or is no longer wanted.
async function follow(job, work) {
  while (job.state === "queued" || job.state === "running") {
    if (job.share > 0) at("bar").value = job.share;
    else at("bar").removeAttribute("value"); // nobody knows how far it is
    at("work-text").textContent = progressInWords(job);
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
    if (state.work !== work) throw new Error("cancelled");
    job = await api.readJob(job.id);
  }
  if (job.state !== "done") {
    keepInAddress(null);
    api.deleteJob(job.id).catch(() => {}); // the service forgets it in any case, if later
    throw new Error(job.message);
  }
  return job;
}

async function cancel() {
  const deleted = stopWork();
  keepInAddress(null);
  const words = "Cancelled; nothing was filled.";
  if (state.file === null) at("facts").textContent = words;
  else at("choice-note").textContent = words;
  at(state.file === null ? "file" : "fill").focus();
  await deleted;
}

function endWork() {
  state.work = null;
  at("work").hidden = true;
  at("fill").disabled = !canFill();
}

// End what is under way, here and at the service.
async function stopWork() {
  const work = state.work;
  endWork();
  if (work !== null && work.id !== null) await api.deleteJob(work.id);
}

// -- a page loaded anew ----------------------------------------------------------------------

const inAddress = () => location.hash.match(/^#job=([\w-]+)$/)?.[1] ?? null;

function keepInAddress(id) {
  const place = `${location.pathname}${location.search}`;
  history.replaceState(null, "", id === null ? place : `${place}#job=${id}`);
}

// Go on with the job of the address: its table is at the service, and no longer here.
async function resume(id) {
  let job;
  try {
    job = await api.readJob(id);
  } catch (error) {
    if (error instanceof api.NotThere && state.file === null) await takeExample();
    throw error;
  }
  if (state.file !== null) return; // a table was dropped meanwhile
  const name = job.name ?? "A table";
  at("facts").textContent =
    `${name} was sent before this page was loaded; choose it again to fill it otherwise.`;
  await attend("Asking how it stands…", async () => job);
}

// -- the result ------------------------------------------------------------------------------

async function showResult(job) {
  const chart = await api.readChart(job.id);
  state.job = job.id;
  at("result-facts").textContent = resultInWords(job.facts);
  showNotes(at("notes"), job.notes);
  state.pictures = chart.pictures;
  state.unfilled = chart.unfilled;
  const names = [...chart.columns, ...Object.keys(chart.unfilled)];
  at("column").replaceChildren(...names.map((name) => new Option(name, name)));
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
  for (const id of ["view-field", "legend", "cells"]) at(id).hidden = options.length === 0;
  showPicture();
}

function showPicture() {
  if (at("view").options.length === 0) {
    const missing = state.unfilled[at("column").value];
    const words = missing === undefined ? "" :
      `Nothing could be filled here: ${count(missing, "cell")} of this column stay missing.`;
    at("chart").replaceChildren(withText("p", words));
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
  const file = await api.readFile(state.job, kind);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = file.name;
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
      at("alert").textContent = sentence(error.message);
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
  const models = await api.readModels();
  at("model-field").hidden = models.length === 0;
  offer(at("model"), models.map((model) => model.name), null, "the pretrained network");
  offerAdapting();
  if (inAddress() !== null) {
    await resume(inAddress());
    return;
  }
  const example = await api.readExample();
  if (state.file === null) await takeFile(example); // unless a table was dropped meanwhile
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
for (const id of ["time", "id", "missing-values", "freq", "infinite"]) {
  at(id).addEventListener("change", action(() => look()));
}
at("columns").addEventListener("change", action(async () => {
  if (state.offersAll) await look(); // another choice may be readable
}));
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
