// The live list of conversations.

import { query } from "../api/client";
import type { Conversation } from "../api/types";
import { compact, count, percent, seconds, when } from "../format";
import { texts } from "../i18n";
import { snapshot } from "../live";
import { clientName, kindName } from "../logic/words";
import { href, route, setQuery } from "../route";
import { Badge, Dot, Empty, LoadError, PageTitle, Segmented, Select, type Tone } from "../ui/basics";
import { chosenModel, ModelSelect } from "../ui/model-select";
import { usePaged } from "../ui/paged";
import { VirtualTable, type Column } from "../ui/virtual";
import type { Texts } from "../i18n/en";

const REFRESH_MS = 2000;
const STATES = ["live", "waiting", "all"] as const;
type State = (typeof STATES)[number];
const SORTS = ["last_used", "context", "turns", "waited"] as const;
type Sort = (typeof SORTS)[number];
export const STATE_TONE: Record<Conversation["state"], Tone> = { waiting: "warning", running: "ok", idle: "info", dormant: "quiet" };

export function Conversations() {
  const words = texts.value;
  const model = chosenModel(false);
  const params = route.value.query;
  const state: State = STATES.find((name) => name === params.get("state")) ?? "live";
  const sort: Sort = SORTS.find((name) => name === params.get("sort")) ?? (state === "waiting" ? "waited" : "last_used");
  const path = `/api/models/${model.split("/").map(encodeURIComponent).join("/")}/conversations`;
  return (
    <>
      <PageTitle title={words.conversations.title}>{words.conversations.title}</PageTitle>
      <div class="filters">
        <ModelSelect />
        <Segmented
          label={words.conversations.state}
          value={state}
          options={STATES.map((value) => ({ value, label: words.conversations[value] }))}
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

function List(props: { path: string; filters: { state: State; sort: Sort }; model: string }) {
  const words = texts.value;
  const list = usePaged<Conversation>(props.path, props.filters, (row) => row.id, REFRESH_MS);
  if (!list.loaded) return <Empty>{words.common.loading}</Empty>;
  return (
    <>
      <LoadError error={list.error} retry={list.reload} />
      {list.rows.length === 0 && !list.error ? (
        <Empty>
          {props.filters.state === "waiting" ? (
            words.conversations.nobodyWaits
          ) : (
            <>
              {words.conversations.empty} <a href={href(["connect"], { model: props.model })}>{words.nav.connect}</a>
            </>
          )}
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
            columns={columns(words, props.filters.state === "waiting")}
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

// Since when a turn of it waits, and for how long by the warden's clock.
export function waitWords(words: Texts, since: number): string {
  return words.conversations.waitsSince(when(since), seconds(Math.max(0, (snapshot.value?.taken_at ?? since) - since)));
}

// Who looks for those that wait wants to know for whom, and for how long.
function columns(words: Texts, waiting: boolean): Column<Conversation>[] {
  const heads = words.conversations.columns;
  const ofWaiting: Column<Conversation>[] = [
    { key: "key", head: heads.key, cell: (row) => row.key_name ?? "–" },
    {
      key: "since",
      head: heads.waitingSince,
      right: true,
      cell: (row) => (row.waiting_since === null ? "–" : waitWords(words, row.waiting_since)),
    },
  ];
  return [
    { key: "name", head: heads.conversation, cell: (row) => <ConversationName row={row} /> },
    ...(waiting ? ofWaiting : []),
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
