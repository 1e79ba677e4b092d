// One conversation: what became of each turn and why, its subagents, and what had to be read twice.

import { useState } from "preact/hooks";
import type { Candidate, Conversation, ConversationDetail, Turn } from "../api/types";
import { compact, count, decimal, percent, seconds, when } from "../format";
import { texts } from "../i18n";
import { snapshot } from "../live";
import { olderAreGone } from "../logic/paging";
import { completionTokens, mostly, PARTS, parts, promptParts, slowFrom, waitIsNoticed } from "../logic/timing";
import { flatten } from "../logic/tree";
import { byScore, causeWords, clientName, decided, kindName, outcomeText, replicaName, whySentence } from "../logic/words";
import { href } from "../route";
import { Badge, Card, Dot, Empty, LoadError, Meter, Note, PageTitle, Scroll, type Tone } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { TimeBar, timeWords } from "../ui/time-bar";
import { ConversationName, STATE_TONE, waitWords } from "./conversations";
import { Figure } from "./overview";

const REFRESH_MS = 2000;
const FIRST_TURNS = 60;
export const DECISION_TONE: Record<string, Tone> = {
  sticky: "ok",
  placed: "info",
  client_pinned: "info",
  balanced: "quiet",
  unrouted: "quiet",
  spilled: "warning",
  rehomed: "warning",
  refused: "fault",
  left: "quiet",
};

export function ConversationPage(props: { id: string }) {
  const words = texts.value;
  const { data, error, missing, reload } = useResource<ConversationDetail>(
    `/api/conversations/${encodeURIComponent(props.id)}`,
    REFRESH_MS,
  );
  const short = data?.conversation.short ?? props.id.slice(0, 8);
  return (
    <>
      <PageTitle title={words.conversation.title(short)}>{words.conversation.title(short)}</PageTitle>
      {missing ? <Note tone="info">{words.conversation.gone}</Note> : <LoadError error={error} retry={reload} />}
      {!data && !error && <Empty>{words.common.loading}</Empty>}
      {data && (
        <>
          <Head row={data.conversation} />
          <Costs costs={data.recomputed_by_cause} />
          {data.children.length > 0 && <Tree root={data.conversation} items={data.children} />}
          <Timeline turns={data.turns} row={data.conversation} />
        </>
      )}
    </>
  );
}

function Head(props: { row: Conversation }) {
  const words = texts.value;
  const { row } = props;
  return (
    <section class="card" aria-label={words.common.details}>
      <dl class="figures-row">
        <Figure
          label={words.conversations.columns.client}
          value={clientName(words, row.client)}
          note={[row.kind ? kindName(words, row.kind) : null, row.derived ? words.conversations.derived : null].filter(Boolean).join(", ")}
        />
        <Figure label={words.conversations.columns.home} value={row.home ?? "–"} />
        <Figure label={words.conversations.columns.turns} value={count(row.turns)} />
        <Figure label={words.conversations.columns.context} value={compact(row.context_tokens)} note={words.common.tokens} />
        <Figure label={words.conversations.columns.cached} value={percent(row.cached_ratio_last)} />
        {row.key_name && <Figure label={words.conversations.columns.key} value={row.key_name} />}
        <Figure
          label={words.conversations.columns.state}
          value={words.conversations.states[row.state]}
          note={row.waiting_since === null ? when(row.last_used) : waitWords(words, row.waiting_since)}
        />
      </dl>
      {row.parent && (
        <p class="hint">
          {words.conversation.parent}{" "}
          <a class="mono" href={href(["conversations", row.parent])}>
            {row.parent.slice(0, 8)}
          </a>
        </p>
      )}
    </section>
  );
}

function Costs(props: { costs: Record<string, number> }) {
  const words = texts.value;
  const entries = Object.entries(props.costs)
    .filter(([, tokens]) => tokens > 0)
    .sort((a, b) => b[1] - a[1]);
  const most = entries[0]?.[1] ?? 1;
  return (
    <Card title={words.conversation.cost}>
      {entries.length === 0 ? (
        <p class="all-well">{words.conversation.costNone}</p>
      ) : (
        <>
          <dl class="costs">
            {entries.map(([cause, tokens]) => (
              <div key={cause} title={causeWords(words, cause).means}>
                <dt>{causeWords(words, cause).title}</dt>
                <dd>
                  <Meter
                    wide
                    ratio={tokens / most}
                    tone="amber"
                    text={words.conversation.costTokens(count(tokens))}
                    label={causeWords(words, cause).title}
                  />
                </dd>
              </div>
            ))}
          </dl>
          <p class="hint">{words.conversation.costHint}</p>
        </>
      )}
    </Card>
  );
}

function Tree(props: { root: Conversation; items: Conversation[] }) {
  const words = texts.value;
  // The root itself stands above the list.
  const rows = flatten(props.items.map((item) => (item.parent === props.root.id ? { ...item, parent: null } : item)));
  return (
    <Card title={words.conversation.tree}>
      <ul class="tree">
        {rows.map(({ item, depth }) => (
          <li key={item.id} style={{ marginInlineStart: `${depth * 1.5}rem` }}>
            <span aria-hidden="true">└ </span>
            <ConversationName row={item} />
            <span class="mono">{item.home ?? "–"}</span>
            <span>
              {words.conversations.columns.turns} {count(item.turns)}
            </span>
            <span>
              {words.conversations.columns.context} {compact(item.context_tokens)}
            </span>
            <span class="state-cell">
              <Dot tone={STATE_TONE[item.state]} /> {words.conversations.states[item.state]}
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Timeline(props: { turns: Turn[]; row: Conversation }) {
  const words = texts.value;
  const [shown, setShown] = useState(FIRST_TURNS);
  const slowS = slowFrom(props.turns.map((turn) => turn.duration_s));
  const longest = Math.max(1, ...props.turns.map((turn) => turn.prompt_tokens ?? 0));
  const longestS = Math.max(0, ...props.turns.map((turn) => turn.duration_s));
  const there = PARTS.filter((name) => props.turns.some((turn) => parts(turn).some((part) => part.name === name)));
  const unmeasured = props.turns.some((turn) => turn.prompt_tokens !== null && turn.cached_tokens === null);
  return (
    <Card title={words.conversation.timeline}>
      <div class="legend">
        <Swatch name="cached" label={words.stats.cached} />
        <Swatch name="computed" label={words.stats.computed} />
        {unmeasured && <Swatch name="unmeasured" label={words.conversation.unknownPart} />}
        {there.map((name) => (
          <Swatch key={name} name={name} label={words.conversation.timing[name]} />
        ))}
      </div>
      <p class="hint">{words.conversation.scale(count(longest), seconds(longestS))}</p>
      <ol class="timeline">
        {props.turns.slice(0, shown).map((turn) => (
          <TurnItem
            key={`${turn.finished_at}${turn.endpoint}${turn.replica}`}
            turn={turn}
            longest={longest}
            longestS={longestS}
            slow={turn.duration_s >= slowS}
          />
        ))}
      </ol>
      {props.turns.length > shown && (
        <button type="button" class="button plain" onClick={() => setShown(shown + FIRST_TURNS)}>
          {words.common.more}
        </button>
      )}
      {props.turns.length <= shown && olderAreGone(props.row, props.turns.length, snapshot.value?.taken_at ?? 0) && (
        <p class="hint">{words.conversation.oldest}</p>
      )}
    </Card>
  );
}

function Swatch(props: { name: string; label: string }) {
  return (
    <span class="legend-item">
      <span class={`swatch ${props.name}`} aria-hidden="true" />
      {props.label}
    </span>
  );
}

function TurnItem(props: { turn: Turn; longest: number; longestS: number; slow: boolean }) {
  const words = texts.value;
  const { turn } = props;
  const decision = decided(turn);
  return (
    <li class="turn">
      <div class="turn-head">
        <time>{when(turn.finished_at)}</time>
        <b class="mono">{turn.replica ?? "–"}</b>
        <Badge tone={DECISION_TONE[decision] ?? "quiet"} title={words.decisionMeans[decision]}>
          {words.decision[decision]}
        </Badge>
        {turn.outcome !== "ok" && <Badge tone={turn.outcome === "cancelled" ? "quiet" : "fault"}>{outcomeText(words, turn)}</Badge>}
        {turn.retried && <Badge tone="warning">{words.conversation.retried}</Badge>}
        <span class="muted mono turn-endpoint">{turn.endpoint}</span>
      </div>
      <p class="turn-why">
        {whySentence(words, turn)} {waitIsNoticed(turn) && words.conversation.waitedFor(seconds(turn.waited_s))}
      </p>
      <PrefixNote turn={turn} />
      <div class="turn-bars">
        <PromptBar turn={turn} longest={props.longest} />
        <TurnTime turn={turn} longestS={props.longestS} />
      </div>
      {props.slow && <SlowNote turn={turn} />}
      {turn.candidates && turn.candidates.length > 0 && <Candidates candidates={turn.candidates} chosen={turn.replica} />}
    </li>
  );
}

// Only what costs something is worth a line: growing is what a prefix should do.
function PrefixNote(props: { turn: Turn }) {
  const words = texts.value;
  const { turn } = props;
  const change = turn.prefix_change;
  const quiet = change === null || change === "extends" || change === "first";
  if (quiet && !turn.recomputed_tokens) return null;
  // As the sums name it.
  const moved = change === "moved" && (turn.decision === "spilled" || turn.decision === "rehomed");
  const cause = change && !quiet ? causeWords(words, moved ? turn.decision! : change) : null;
  const notes = [
    ...(turn.prefix_shared_ratio !== null && turn.prefix_shared_ratio < 0.995
      ? [words.conversation.shared(percent(turn.prefix_shared_ratio))]
      : []),
    ...(turn.recomputed_tokens ? [words.conversation.recomputed(count(turn.recomputed_tokens))] : []),
  ];
  return (
    <p class="turn-prefix" title={cause?.means}>
      {cause && <b>{notes.length ? words.common.labelled(cause.title, "") : cause.title}</b>}
      {notes.join(words.common.comma)}
    </p>
  );
}

function PromptBar(props: { turn: Turn; longest: number }) {
  const words = texts.value.conversation;
  const prompt = promptParts(props.turn);
  const completion = completionTokens(props.turn);
  const generated = completion === null ? words.completionUnknown : words.completion(count(completion));
  if (!prompt) return <p class="turn-line muted">{texts.value.common.labelled(words.prompt, words.notMeasured)}</p>;
  const share = (tokens: number): string => `${(tokens / props.longest) * 100}%`;
  const read =
    prompt.cached === null || prompt.computed === null
      ? words.cachedUnknown(count(prompt.prompt))
      : words.cachedComputed(count(prompt.cached), count(prompt.computed));
  const text = `${read} · ${generated}`;
  return (
    <div class="turn-line">
      <span class="bar" role="img" aria-label={texts.value.common.labelled(words.prompt, text)}>
        {prompt.cached === null || prompt.computed === null ? (
          <span class="unmeasured" style={{ width: share(prompt.prompt) }} />
        ) : (
          <>
            {prompt.cached > 0 && <span class="cached" style={{ width: share(prompt.cached) }} />}
            {prompt.computed > 0 && <span class="computed" style={{ width: share(prompt.computed) }} />}
          </>
        )}
      </span>
      <span class="bar-text">{text}</span>
    </div>
  );
}

function TurnTime(props: { turn: Turn; longestS: number }) {
  const { turn } = props;
  const title = turn.streamed === false ? { title: texts.value.conversation.notSplit } : {};
  return (
    <div class="turn-line" {...title}>
      <TimeBar turn={turn} longestS={props.longestS} />
      <span class="bar-text">
        <b>{seconds(turn.duration_s)}</b> = {timeWords(turn)}
      </span>
    </div>
  );
}

function SlowNote(props: { turn: Turn }) {
  const words = texts.value.conversation;
  const part = mostly(props.turn);
  return (
    <p class="turn-slow">
      <b>{words.slow}</b> {part ? words.slowWords[part] : ""}
    </p>
  );
}

function Candidates(props: { candidates: Candidate[]; chosen: string | null }) {
  const words = texts.value.conversation;
  const heads = words.candidate;
  return (
    <details class="candidates">
      <summary>{words.compared}</summary>
      <Scroll label={words.compared}>
        <table>
          <thead>
            <tr>
              <th scope="col">{texts.value.common.replica}</th>
              <th scope="col" class="right">
                {words.score}
              </th>
              <th scope="col" class="right">
                {heads.inFlight}
              </th>
              <th scope="col" class="right">
                {heads.conversations}
              </th>
              <th scope="col" class="right">
                {heads.kv}
              </th>
              <th scope="col" class="right">
                {heads.held}
              </th>
            </tr>
          </thead>
          <tbody>
            {byScore(props.candidates).map((candidate) => {
              const name = replicaName(candidate.replica);
              return (
                <tr key={name} class={name === props.chosen ? "strong" : ""}>
                  <th scope="row" class="mono">
                    {name}
                  </th>
                  <td class="right">{decimal(candidate.score, 2)}</td>
                  <td class="right">{count(candidate.in_flight)}</td>
                  <td class="right">{count(candidate.conversations)}</td>
                  <td class="right">{percent(candidate.kv_used_ratio)}</td>
                  <td class="right">{percent(candidate.held_ratio)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}
