// Facts in words.

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

// What the service says, as a sentence by itself.
export function sentence(said) {
  const whole = said.charAt(0).toUpperCase() + said.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

export function tableInWords(name, found) {
  const size = `${name}: ${count(found.rows, "row")}, ${count(found.names.length, "column")}`;
  if (found.table === null) return `${size}.`;
  const { missing, share, series, skipped_steps: skipped } = found.table;
  const several = series > 1 ? `, ${count(series, "series", "series")}` : "";
  const without = skipped > 0 ? `, with those of ${count(skipped, "step")} that no row has` : "";
  const gaps = `${count(missing, "cell")} missing (${(100 * share).toFixed(1)} %)${without}`;
  return `${size}${several}; ${gaps}.`;
}

export function progressInWords(job) {
  if (job.state === "queued") {
    return job.ahead === 0 ? "Next in line…" : `Waiting; ${count(job.ahead, "job")} ahead.`;
  }
  const left = job.seconds_left;
  if (left === null) return `${job.text}…`;
  const rounded = left < 60 ? `${Math.max(1, Math.round(left))} s` : `${Math.round(left / 60)} min`;
  return `${job.text}; about ${rounded} left.`;
}

export function resultInWords({ filled, missing, steps, validation_mae: own, linear_mae: linear }) {
  const left = missing - filled;
  const score = own === null || linear === null ? "" :
    ` On held-out cells the mean error is ${own.toPrecision(3)} of a standard deviation; ` +
    `linear interpolation has ${linear.toPrecision(3)}.`;
  return `${count(filled, "cell")} filled` +
    `${left > 0 ? `, ${left.toLocaleString("en")} left missing` : ""}` +
    `${steps > 0 ? `, after ${count(steps, "step")} of training on this table` : ""}.${score}`;
}
