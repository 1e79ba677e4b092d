// The latest requests, without a word of what they said.

import { useState } from "preact/hooks";
import { query } from "../api/client";
import { DECISIONS, OUTCOMES, type ApiKey, type RequestRow } from "../api/types";
import { count, seconds, when } from "../format";
import { texts } from "../i18n";
import type { Texts } from "../i18n/en";
import { clientName, decisionName, whySentence } from "../logic/words";
import { href, route, setQuery } from "../route";
import { Badge, Button, Empty, LoadError, PageTitle, Select } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { chosenModel, ModelSelect } from "../ui/model-select";
import { usePaged } from "../ui/paged";
import { VirtualTable, type Column } from "../ui/virtual";
import { DECISION_TONE } from "./conversation";

const REFRESH_MS = 3000;

const idOf = (row: RequestRow): string => String(row.id);

export function Requests() {
  const words = texts.value;
  const params = route.value.query;
  const filters = {
    model: chosenModel(true),
    key: params.get("key") ?? "",
    outcome: params.get("outcome") ?? "",
    decision: params.get("decision") ?? "",
  };
  const filtered = Object.values(filters).some(Boolean);
  const keys = useResource<{ items: ApiKey[] }>("/api/keys").data?.items ?? [];
  const all = { value: "", label: words.common.all };
  return (
    <>
      <PageTitle title={words.requests.title}>{words.requests.title}</PageTitle>
      <p class="intro">{words.requests.intro}</p>
      <div class="filters">
        <ModelSelect allowAll />
        {(keys.length > 0 || filters.key) && (
          <Select
            label={words.requests.key}
            value={filters.key}
            options={[all, ...keyOptions(keys, filters.key)]}
            onChange={(key) => setQuery({ key: key || null })}
          />
        )}
        <Select
          label={words.requests.outcome}
          value={filters.outcome}
          options={[all, ...OUTCOMES.map((value) => ({ value: value as string, label: words.outcome[value] }))]}
          onChange={(outcome) => setQuery({ outcome: outcome || null })}
        />
        <Select
          label={words.requests.decision}
          value={filters.decision}
          options={[all, ...[...DECISIONS, "refused" as const].map((value) => ({ value: value as string, label: words.decision[value] }))]}
          onChange={(decision) => setQuery({ decision: decision || null })}
        />
        {filtered && (
          <Button onClick={() => setQuery({ model: null, key: null, outcome: null, decision: null })}>{words.requests.reset}</Button>
        )}
      </div>
      <List key={query(filters)} filters={filters} />
    </>
  );
}

function keyOptions(keys: readonly ApiKey[], chosen: string): { value: string; label: string }[] {
  const names = keys.map((key) => key.name);
  return (chosen && !names.includes(chosen) ? [...names, chosen] : names).map((name) => ({ value: name, label: name }));
}

function List(props: { filters: Record<string, string> }) {
  const words = texts.value;
  const list = usePaged<RequestRow>("/api/requests", props.filters, idOf, REFRESH_MS);
  const [why, setWhy] = useState<RequestRow | null>(null);
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
          columns={columns(words, setWhy)}
          id={idOf}
          total={list.total}
          onNearEnd={list.loadMore}
          onHold={list.hold}
        />
      )}
      <p class="why-line" role="status">
        {why && `${when(why.finished_at)}: ${whySentence(words, why)}`}
      </p>
    </>
  );
}

function columns(words: Texts, onWhy: (row: RequestRow) => void): Column<RequestRow>[] {
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
          <Badge tone={DECISION_TONE[row.decision ?? "refused"] ?? "quiet"}>{decisionName(words, row.decision)}</Badge>
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
          <Badge tone={row.outcome === "cancelled" ? "quiet" : "fault"}>{`${words.outcome[row.outcome]} ${row.status || ""}`}</Badge>
        ),
    },
    { key: "prompt", head: heads.prompt, right: true, cell: (row) => count(row.prompt_tokens) },
    { key: "cached", head: heads.cached, right: true, cell: (row) => count(row.cached_tokens) },
    { key: "completion", head: heads.completion, right: true, cell: (row) => count(row.completion_tokens) },
    { key: "first", head: heads.first, right: true, cell: (row) => seconds(row.first_byte_s) },
    { key: "duration", head: heads.duration, right: true, cell: (row) => seconds(row.duration_s) },
  ];
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
