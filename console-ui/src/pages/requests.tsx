// The latest requests, without a word of what they said.

import { useState } from "preact/hooks";
import { query } from "../api/client";
import { DECISIONS, OUTCOMES, type ApiKey, type RequestRow } from "../api/types";
import { count, dateTime, seconds, unix, when } from "../format";
import { texts } from "../i18n";
import { CLIENTS } from "../i18n/codes";
import type { Texts } from "../i18n/en";
import { snapshot } from "../live";
import { completionTokens, waitIsNoticed } from "../logic/timing";
import { clientName, decided, decisionName, outcomeText, ownAnswer, whySentence } from "../logic/words";
import { href, route, setQuery } from "../route";
import { Badge, Button, Empty, LoadError, PageTitle, Select } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { chosenModel, chosenReplicas, ModelSelect } from "../ui/model-select";
import { usePaged } from "../ui/paged";
import { TimeBar } from "../ui/time-bar";
import { VirtualTable, type Column } from "../ui/virtual";
import { DECISION_TONE } from "./conversation";

const REFRESH_MS = 3000;
const ORDERS = ["newest", "first_byte", "duration", "waited", "computed"] as const;
const ENDPOINTS = ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings"];
// What names a view of the list; all of it stands in the address.
const FILTERS = ["key", "outcome", "decision", "replica", "client", "endpoint"] as const;

const idOf = (row: RequestRow): string => String(row.id);

export function Requests() {
  const words = texts.value;
  const params = route.value.query;
  const order = ORDERS.find((name) => name === params.get("sort")) ?? "newest";
  const chosen = Object.fromEntries(FILTERS.map((name) => [name, params.get(name) ?? ""]));
  const filters: Record<string, string> = { model: chosenModel(true), ...chosen, sort: order === "newest" ? "" : order };
  const filtered = Object.values(filters).some(Boolean);
  const none = Object.fromEntries(["model", "sort", ...FILTERS].map((name) => [name, null]));
  return (
    <>
      <PageTitle title={words.requests.title}>{words.requests.title}</PageTitle>
      <p class="intro">{words.requests.intro}</p>
      <OwnAnswers />
      <div class="filters">
        <ModelSelect allowAll />
        <Filters chosen={chosen} />
        <Select
          label={words.requests.order}
          value={order}
          options={ORDERS.map((value) => ({ value, label: words.requests.orders[value] }))}
          onChange={(sort) => setQuery({ sort: sort === "newest" ? null : sort })}
        />
        {filtered && <Button onClick={() => setQuery(none)}>{words.requests.reset}</Button>}
      </div>
      <List key={query(filters)} filters={filters} />
    </>
  );
}

function Filters(props: { chosen: Record<string, string> }) {
  const words = texts.value;
  const keys = useResource<{ items: ApiKey[] }>("/api/keys").data?.items ?? [];
  const replicas = chosenReplicas();
  const decisions = [...DECISIONS, "refused" as const, "left" as const].map((value) => ({
    value: value as string,
    label: words.decision[value],
  }));
  const same = (names: readonly string[]) => names.map((value) => ({ value, label: value }));
  const options: Record<(typeof FILTERS)[number], { value: string; label: string }[]> = {
    key: same(keys.map((key) => key.name)),
    outcome: OUTCOMES.map((value) => ({ value: value as string, label: words.outcome[value] })),
    decision: decisions,
    replica: same([...new Set(replicas)]),
    client: CLIENTS.map((value) => ({ value: value as string, label: words.client[value] })),
    endpoint: same(ENDPOINTS),
  };
  const labels = { ...words.requests, replica: words.common.replica };
  return (
    <>
      {FILTERS.filter((name) => options[name].length > 0 || props.chosen[name]).map((name) => (
        <Select
          key={name}
          label={labels[name]}
          value={props.chosen[name] ?? ""}
          options={[{ value: "", label: words.common.all }, ...withChosen(options[name], props.chosen[name] ?? "")]}
          onChange={(value) => setQuery({ [name]: value || null })}
        />
      ))}
    </>
  );
}

// What no row tells of: the warden answered by itself, before a model was asked.
function OwnAnswers() {
  const words = texts.value;
  const now = snapshot.value;
  const answers = [...(now?.overview.own_answers ?? [])].filter((answer) => answer.count > 0).sort((a, b) => b.count - a.count);
  if (!now || !answers.length) return null;
  return (
    <p class="own-answers" title={words.requests.ownMeans}>
      {words.requests.own(dateTime(unix(now.counting_since)))}{" "}
      {answers.map((answer) => (
        <Badge key={`${answer.status}${answer.code}`}>
          {answer.status} {ownAnswer(words, answer.code)} <b>{count(answer.count)}</b>
        </Badge>
      ))}
    </p>
  );
}

// What stands in the address is offered too: a key that was revoked, a replica that is gone.
function withChosen(options: { value: string; label: string }[], chosen: string): { value: string; label: string }[] {
  return chosen && !options.some((option) => option.value === chosen) ? [...options, { value: chosen, label: chosen }] : options;
}

function List(props: { filters: Record<string, string> }) {
  const words = texts.value;
  const list = usePaged<RequestRow>("/api/requests", props.filters, idOf, REFRESH_MS);
  const [why, setWhy] = useState<RequestRow | null>(null);
  const longestS = Math.max(0, ...list.rows.map((row) => row.duration_s));
  const waited = list.rows.some(waitIsNoticed);
  if (!list.loaded) return <Empty>{words.common.loading}</Empty>;
  return (
    <>
      <LoadError error={list.error} retry={list.reload} />
      {list.rows.length === 0 && !list.error ? (
        <Empty>{words.requests.empty}</Empty>
      ) : (
        <VirtualTable
          label={words.requests.title}
          rows={list.rows}
          columns={columns(words, setWhy, longestS, waited)}
          id={idOf}
          total={list.total}
          onNearEnd={list.loadMore}
          onHold={list.hold}
        />
      )}
      <p class="why-line" role="status">
        {why && words.common.labelled(when(why.finished_at), whySentence(words, why))}
      </p>
    </>
  );
}

function columns(words: Texts, onWhy: (row: RequestRow) => void, longestS: number, waited: boolean): Column<RequestRow>[] {
  const heads = words.requests.columns;
  return [
    { key: "time", head: heads.time, cell: (row) => when(row.finished_at) },
    { key: "conversation", head: heads.conversation, cell: (row) => conversationCell(row) },
    { key: "client", head: heads.client, cell: (row) => clientName(words, row.client), extra: true },
    { key: "key", head: heads.key, cell: (row) => row.key_name ?? <span class="muted">{words.requests.noKey}</span>, extra: true },
    { key: "endpoint", head: heads.endpoint, cell: (row) => <span class="mono">{row.endpoint}</span>, extra: true },
    { key: "replica", head: heads.replica, cell: (row) => <span class="mono">{row.replica ?? "–"}</span> },
    {
      key: "decision",
      head: heads.decision,
      cell: (row) => (
        <button type="button" class="badge-button" title={whySentence(words, row)} onClick={() => onWhy(row)}>
          <Badge tone={DECISION_TONE[decided(row)] ?? "quiet"}>{decisionName(words, row)}</Badge>
        </button>
      ),
    },
    {
      key: "outcome",
      head: heads.outcome,
      cell: (row) =>
        row.outcome === "ok" ? (
          words.outcome.ok
        ) : (
          <Badge tone={row.outcome === "cancelled" ? "quiet" : "fault"}>{outcomeText(words, row)}</Badge>
        ),
    },
    { key: "prompt", head: heads.prompt, right: true, cell: (row) => count(row.prompt_tokens) },
    { key: "cached", head: heads.cached, right: true, cell: (row) => count(row.cached_tokens) },
    { key: "completion", head: heads.completion, right: true, cell: (row) => count(completionTokens(row)) },
    ...(waited
      ? [{ key: "waited", head: heads.waited, right: true, cell: (row: RequestRow) => (waitIsNoticed(row) ? seconds(row.waited_s) : "") }]
      : []),
    { key: "first", head: heads.first, right: true, cell: (row) => firstByteCell(words, row) },
    { key: "duration", head: heads.duration, right: true, cell: (row) => durationCell(row, longestS) },
  ];
}

// Of an answer in one piece the first byte is the last: no figure to compare with those of streams.
function firstByteCell(words: Texts, row: RequestRow) {
  if (row.streamed !== false || row.first_byte_s === null) return seconds(row.first_byte_s);
  return (
    <span class="muted" title={words.requests.wholeMeans}>
      {words.requests.whole}
    </span>
  );
}

function durationCell(row: RequestRow, longestS: number) {
  return (
    <span class="duration">
      <TimeBar turn={row} longestS={longestS} /> <span>{seconds(row.duration_s)}</span>
    </span>
  );
}

function conversationCell(row: RequestRow) {
  if (!row.conversation) return "–";
  if (!row.conversation_id) return <span class="mono">{row.conversation}</span>;
  return (
    <a class="mono" href={href(["conversations", row.conversation_id])}>
      {row.conversation}
    </a>
  );
}
