// What happened over time: tokens per second, first bytes, decisions, load, failures.

import { useMemo, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { apiUrl, query } from "../api/client";
import type { Series } from "../api/types";
import { Chart } from "../charts/chart";
import type { PlotSpec } from "../logic/plot-spec";
import { busy, decisions, failures, kvUsed, latency, tokens, waiting } from "../charts/specs";
import { count, seconds } from "../format";
import { texts } from "../i18n";
import type { Texts } from "../i18n/en";
import { fromLocalInput, parseRange, rangeQuery, refreshMs, toLocalInput, WINDOWS, windowSeconds, type Range } from "../logic/range";
import { route, setQuery } from "../route";
import { Button, LoadError, Note, PageTitle, Segmented, Select } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { chosenModel, chosenReplicas, modelNames, ModelSelect } from "../ui/model-select";
import { cachedWords } from "./overview";

export function Stats() {
  const words = texts.value.stats;
  const range = parseRange(route.value.query);
  const model = chosenModel(true);
  const replica = route.value.query.get("replica") ?? "";
  const filters = { ...rangeQuery(range), model, replica };
  const everyMs = refreshMs(range, Date.now() / 1000);
  const zoom = (from: number, to: number): void => setQuery({ window: null, from: String(Math.floor(from)), to: String(Math.ceil(to)) });
  const [log, setLog] = useState(false);
  const common = { filters, everyMs, zoom, range };
  return (
    <>
      <PageTitle title={words.title}>{words.title}</PageTitle>
      <Filters range={range} model={model} replica={replica} />
      <Panel
        {...common}
        path="/api/stats/tokens"
        title={words.tokens}
        hint={words.tokensHint}
        name="tokens"
        height={300}
        build={tokens}
        note={(series) => cachedWords(series, range.window)}
      />
      <div class="chart-grid">
        <Panel
          {...common}
          path="/api/stats/latency"
          title={words.latency}
          hint={words.latencyHint}
          name="latency"
          build={(text, series) => latency(text, series, log)}
          key={`latency-${log}`}
          note={latencyWords}
          aside={
            <Button pressed={log} onClick={() => setLog(!log)}>
              {words.logScale}
            </Button>
          }
        />
        <Panel {...common} path="/api/stats/requests" title={words.decisions} hint={words.perSecond} name="decisions" build={decisions} />
        <Panel {...common} path="/api/stats/replicas" title={words.busy} hint={words.busyHint} name="busy" build={busy} />
        <Panel {...common} path="/api/stats/replicas" title={words.kv} name="kv" build={kvUsed} />
        <Panel {...common} path="/api/stats/replicas" title={words.waiting} name="waiting" build={waiting} />
        <Panel {...common} path="/api/stats/requests" title={words.failures} hint={words.perSecond} name="failures" build={failures} />
      </div>
    </>
  );
}

function latencyWords(series: Series): string {
  const totals = series.totals;
  const words = texts.value.stats;
  if (!totals || totals.count === 0) return "";
  const requests = texts.value.common.aside(words.requestsCount(count(totals.count)));
  return `p50 ${seconds(totals.p50)} · p95 ${seconds(totals.p95)} · p99 ${seconds(totals.p99)} ${requests}`;
}

function Panel(props: {
  path: string;
  filters: Record<string, string>;
  everyMs: number;
  title: string;
  hint?: string;
  name: string;
  height?: number;
  range: Range;
  build: (texts: Texts, series: Series) => PlotSpec;
  note?: (series: Series) => string;
  zoom: (from: number, to: number) => void;
  aside?: ComponentChildren;
}) {
  const { data, error, reload } = useResource<Series>(props.path + query(props.filters), props.everyMs);
  const language = texts.value;
  const spec = useMemo(() => (data ? props.build(language, data) : null), [data, language]);
  const hint = props.hint ? { hint: props.hint } : {};
  return (
    <div class="panel">
      <LoadError error={error} retry={reload} />
      <Chart
        {...hint}
        title={props.title}
        spec={spec}
        note={data && props.note ? props.note(data) : ""}
        csv={apiUrl(props.path + query({ ...props.filters, format: "csv" }))}
        fileName={`${props.name}-${props.range.window}`}
        height={props.height ?? 180}
        onRange={props.zoom}
        aside={props.aside}
      />
    </div>
  );
}

function Filters(props: { range: Range; model: string; replica: string }) {
  const words = texts.value;
  const { range } = props;
  const [open, setOpen] = useState(range.window === "free");
  const replicas = modelNames().length === 1 || props.model ? chosenReplicas() : [];
  const choose = (window: string): void => {
    setOpen(window === "free");
    if (window !== "free") setQuery({ window, from: null, to: null });
  };
  const options = [...WINDOWS, "free" as const].map((value) => ({ value, label: words.stats.ranges[value] }));
  return (
    <div class="filters" role="group" aria-label={words.stats.range}>
      <Segmented label={words.stats.range} value={open ? "free" : range.window} options={options} onChange={choose} />
      {open && <FreeRange range={range} />}
      <ModelSelect allowAll />
      {replicas.length > 1 && (
        <Select
          label={words.common.replica}
          value={props.replica}
          options={[{ value: "", label: words.common.all }, ...replicas.map((name) => ({ value: name, label: name }))]}
          onChange={(name) => setQuery({ replica: name || null })}
        />
      )}
    </div>
  );
}

function FreeRange(props: { range: Range }) {
  const words = texts.value;
  const now = Date.now() / 1000;
  const window = props.range.window === "free" ? "1h" : props.range.window;
  const [from, setFrom] = useState(toLocalInput(props.range.from ?? now - windowSeconds(window)));
  const [to, setTo] = useState(toLocalInput(props.range.to ?? now));
  const [start, end] = [fromLocalInput(from), fromLocalInput(to)];
  const valid = start !== null && end !== null && start < end;
  const apply = (event: Event): void => {
    event.preventDefault();
    if (valid) setQuery({ window: null, from: String(start), to: String(end) });
  };
  return (
    <form class="free-range" onSubmit={apply}>
      <label class="field">
        <span class="field-label">{words.stats.from}</span>
        <input type="datetime-local" value={from} onInput={(event) => setFrom(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span class="field-label">{words.stats.to}</span>
        <input type="datetime-local" value={to} onInput={(event) => setTo(event.currentTarget.value)} />
      </label>
      <Button type="submit" kind="primary" disabled={!valid}>
        {words.common.apply}
      </Button>
      {start !== null && end !== null && start >= end && (
        <Note tone="warning" role="status">
          {words.stats.badRange}
        </Note>
      )}
    </form>
  );
}
