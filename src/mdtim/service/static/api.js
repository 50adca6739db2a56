// The REST calls. Every error is a sentence for people.

let token = null;

export class TokenNeeded extends Error {}
export class NotThere extends Error {}

export function useToken(given) {
  token = given;
}

export function hasToken() {
  return token !== null;
}

async function call(path, options = {}) {
  const headers = { "X-Mdtim-Wording": "page" }; // messages name fields, not parameters
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const sentence = body.detail ?? `The service answered ${answer.status}.`;
  const kinds = { 401: TokenNeeded, 404: NotThere };
  throw new (kinds[answer.status] ?? Error)(sentence);
}

function upload(path, file, choices) {
  const form = new FormData();
  form.append("file", file);
  return call(`${path}?${new URLSearchParams(choices)}`, { method: "POST", body: form });
}

export const preview = async (file, choices) => (await upload("/v1/preview", file, choices)).json();
export const createJob = async (file, choices) => (await upload("/v1/jobs", file, choices)).json();
export const readJob = async (id) => (await call(`/v1/jobs/${id}`)).json();
export const deleteJob = (id) => call(`/v1/jobs/${id}`, { method: "DELETE" });
export const readChart = async (id) => (await call(`/v1/jobs/${id}/chart`)).json();
export const readModels = async () => (await call("/v1/models")).json();

export const reportPath = (id) => `/v1/jobs/${id}/report`;

// A file of the result, under the name that the service gives it.
export async function readFile(id, kind) {
  const path = kind === "report" ? reportPath(id) : `/v1/jobs/${id}/result?format=${kind}`;
  const answer = await call(path);
  const said = answer.headers.get("Content-Disposition");
  const [, encoded, plain] = said.match(/filename(?:\*=utf-8''(\S+)|="([^"]*)")/);
  return new File([await answer.blob()], plain ?? decodeURIComponent(encoded));
}

export async function readExample() {
  const blob = await (await call("/v1/example")).blob();
  return new File([blob], "example.csv");
}
