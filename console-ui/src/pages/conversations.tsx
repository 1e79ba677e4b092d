// The live list of conversations.

import { query } from "../api/client";
import type { Conversation } from "../api/types";
import { compact, count, percent, when } from "../format";
import { texts } from "../i18n";
import { clientName, kindName } from "../logic/words";
import { href, route, setQuery } from "../route";
import { Badge, Dot, Empty, LoadError, PageTitle, Segmented, Select, type Tone } from "../ui/basics";
import { chosenModel, ModelSelect } from "../ui/model-select";
import { usePaged } from "../ui/paged";
import { VirtualTable, type Column } from "../ui/virtual";
import type { Texts } from "../i18n/en";

const REFRESH_MS = 2000;
const SORTS = ["last_used", "context", "turns"] as const;
type Sort = (typeof SORTS)[number];
export const STATE_TONE: Record<Conversation["state"], Tone> = { waiting: "warning", running: "ok", idle: "info", dormant: "quiet" };

export function Conversations() {
  const words = texts.value;
  const model = chosenModel(false);
  const params = route.value.query;
  const state = params.get("state") === "all" ? "all" : "live";
  const sort: Sort = SORTS.find((name) => name === params.get("sort")) ?? "last_used";
  const path = `/api/models/${model.split("/").map(encodeURIComponent).join("/")}/conversations`;
  return (
    <>
      <PageTitle title={words.conversations.title}>{words.conversations.title}</PageTitle>
      <div class="filters">
        <ModelSelect />
        <Segmented
          label={words.conversations.state}
          value={state}
          options={(["live", "all"] as const).map((value) => ({ value, label: words.conversations[value] }))}
          onChange={(value) => setQuery({ state: value })}
        />
        <Select
          label={words.conversations.sort}
          value={sort}
          options={SORTS.map((value) => ({ value, label: words.conversations.sorts[value] }))}
          onChange={(value) => setQuery({ sort: value })}
        />
      </div>
      {model ? (
        <List key={path + query({ state, sort })} path={path} filters={{ state, sort }} model={model} />
      ) : (
        <Empty>{words.common.loading}</Empty>
      )}
    </>
  );
}

function List(props: { path: string; filters: Record<string, string>; model: string }) {
  const words = texts.value;
  const list = usePaged<Conversation>(props.path, props.filters, (row) => row.id, REFRESH_MS);
  if (!list.loaded) return <Empty>{words.common.loading}</Empty>;
  return (
    <>
      <LoadError error={list.error} retry={list.reload} />
      {list.rows.length === 0 && !list.error ? (
        <Empty>
          {words.conversations.empty} <a href={href(["connect"], { model: props.model })}>{words.nav.connect}</a>
        </Empty>
      ) : (
        <>
          <p class="hint list-count">
            {words.conversations.shown(
              count(list.rows.length),
              list.total === null ? (list.more ? "…" : count(list.rows.length)) : count(list.total),
            )}{" "}
            · {words.conversations.held}
          </p>
          <VirtualTable
            label={words.conversations.title}
            rows={list.rows}
            columns={columns(words)}
            id={(row) => row.id}
            total={list.total}
            onNearEnd={list.loadMore}
            onHold={list.hold}
          />
        </>
      )}
    </>
  );
}

export function ConversationName(props: { row: Pick<Conversation, "id" | "short" | "derived" | "kind"> }) {
  const words = texts.value;
  const { row } = props;
  return (
    <>
      <a class="mono" href={href(["conversations", row.id])}>
        {row.short}
      </a>
      {row.derived && <Badge title={words.conversations.derivedMeans}>{words.conversations.derived}</Badge>}
      {row.kind && row.kind !== "main" && <Badge tone="info">{kindName(words, row.kind)}</Badge>}
    </>
  );
}

function columns(words: Texts): Column<Conversation>[] {
  const heads = words.conversations.columns;
  return [
    { key: "name", head: heads.conversation, cell: (row) => <ConversationName row={row} /> },
    { key: "client", head: heads.client, cell: (row) => clientName(words, row.client), extra: true },
    { key: "home", head: heads.home, cell: (row) => <span class="mono">{row.home ?? "–"}</span> },
    { key: "turns", head: heads.turns, right: true, cell: (row) => count(row.turns) },
    { key: "context", head: heads.context, right: true, cell: (row) => compact(row.context_tokens) },
    { key: "cached", head: heads.cached, right: true, cell: (row) => percent(row.cached_ratio_last) },
    {
      key: "state",
      head: heads.state,
      cell: (row) => (
        <span class="state-cell" title={words.conversations.statesMean[row.state]}>
          <Dot tone={STATE_TONE[row.state]} /> {words.conversations.states[row.state]}
          {row.in_flight > 1 ? ` ×${row.in_flight}` : ""}
        </span>
      ),
    },
    { key: "used", head: heads.lastUsed, right: true, extra: true, cell: (row) => when(row.last_used) },
  ];
}
