// The card "Data-parallel routing": one row per replica, and above it what the whole is set to and does.

import { useState } from "preact/hooks";
import { mayChange, query } from "../../api/client";
import { DECISIONS, type CachedShares, type ModelDetail, type ReplicaRow, type Routing } from "../../api/types";
import { compact, count, dateTime, percent, seconds, span, unix } from "../../format";
import { texts } from "../../i18n";
import { busiestSentence } from "../../logic/busiest";
import { Badge, Button, Card, Dot, Meter, Scroll, Switch, type Tone } from "../../ui/basics";
import { useResource } from "../../ui/hooks";
import { Ask, leavesNone, type Question } from "./ask";
import { heldTone } from "./capacity";
import { drain, patchRouting, undrain } from "./commands";
import { columnsOf, sortRows, withShares, type ColumnKey, type Row } from "./columns";

const SHARES_MS = 10_000;

export function RoutingCard(props: { model: ModelDetail; takenAt: number }) {
  const words = texts.value.model;
  const { model } = props;
  const routing = model.routing;
  const since = unix(routing.counting_since);
  return (
    <Card
      title={words.card}
      class="routing-card"
      aside={
        <Badge
          tone={routing.pins.state === "verified" ? "ok" : routing.pins.state === "failed" ? "fault" : "quiet"}
          {...(routing.pins.detail ? { title: routing.pins.detail } : {})}
        >
          {texts.value.state.pins[routing.pins.state]}
        </Badge>
      }
    >
      <Labels name={model.name} routing={routing} />
      <p class="busiest" aria-live="off">
        {busiestSentence(texts.value, routing)}
      </p>
      <Replicas model={model} />
      <Counts model={model} />
      <p class="hint counting">{words.countingSince(dateTime(since), span(since === null ? null : props.takenAt - since))}</p>
    </Card>
  );
}

function Labels(props: { name: string; routing: Routing }) {
  const words = texts.value.model;
  const { routing } = props;
  const [busy, setBusy] = useState(false);
  const toggle = async (affinity: boolean): Promise<void> => {
    setBusy(true);
    await patchRouting(props.name, { affinity });
    setBusy(false);
  };
  return (
    <div class="labels">
      <Switch
        on={routing.affinity}
        label={routing.affinity ? words.affinityOn : words.affinityOff}
        onChange={(on) => void toggle(on)}
        disabled={busy || !mayChange()}
      />
      <span class="label-chip">{words.threshold(count(routing.spill_threshold), words.source[routing.spill_threshold_source])}</span>
      <span class="label-chip">{words.sticky(percent(routing.sticky_ratio, 1))}</span>
      <span class="label-chip">{words.inFlight(count(routing.in_flight))}</span>
    </div>
  );
}

function Counts(props: { model: ModelDetail }) {
  const words = texts.value;
  const { routing, conversations, identity } = props.model;
  return (
    <>
      <dl class="counts" aria-label={words.model.decisions}>
        {DECISIONS.map((decision) => (
          <div key={decision} title={words.decisionMeans[decision]}>
            <dt>{words.decision[decision]}</dt>
            <dd>{count(routing.decisions[decision])}</dd>
          </div>
        ))}
        <div title={words.decisionMeans.refused}>
          <dt>{words.model.refused}</dt>
          <dd>{count(routing.refused)}</dd>
        </div>
        <div>
          <dt>{words.model.held}</dt>
          <dd>{count(conversations)}</dd>
        </div>
      </dl>
      <p class="hint">
        {words.common.labelled(
          words.model.identity,
          words.model.identityWords(count(identity.sent), count(identity.derived), count(identity.none)),
        )}
      </p>
    </>
  );
}

export function replicaTone(row: ReplicaRow): Tone {
  if (row.state === "down" || row.stalled) return "fault";
  if (row.state !== "ready" || row.suspect || row.drained) return "warning";
  return "ok";
}

function Replicas(props: { model: ModelDetail }) {
  const words = texts.value;
  const { model } = props;
  const [order, setOrder] = useState<{ key: ColumnKey; down: boolean }>({ key: "replica", down: false });
  const [question, setQuestion] = useState<Question | null>(null);
  const columns = columnsOf(words, model.routing);
  const shares = useResource<CachedShares>(`/api/stats/cached${query({ model: model.name, window: "1h" })}`, SHARES_MS).data;
  const rows = sortRows(withShares(model.routing.replicas, shares), order.key, order.down);
  const loads = model.routing.replicas.map((row) => row.in_flight);
  const most = Math.max(...loads);
  const stands = most > Math.min(...loads);
  const ask = (row: ReplicaRow): void =>
    setQuestion({
      title: words.model.confirmDrain(row.replica),
      text: words.model.confirmDrainText,
      action: words.model.drain,
      outage: leavesNone(model.routing.replicas, (other) => other.replica === row.replica),
      then: (allow) => void drain(model.name, row.replica, allow),
    });
  return (
    <>
      <Scroll label={words.model.card}>
        <table class="replicas">
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  key={column.key}
                  scope="col"
                  class={column.key === "replica" ? "" : "right"}
                  aria-sort={order.key === column.key ? (order.down ? "descending" : "ascending") : "none"}
                  title={column.means}
                >
                  <button
                    type="button"
                    class="sort"
                    onClick={() => setOrder({ key: column.key, down: order.key === column.key ? !order.down : column.key !== "replica" })}
                  >
                    {column.head}
                  </button>
                  {column.note && <span class="column-note">{column.note}</span>}
                </th>
              ))}
              <th scope="col">
                <span class="hidden">{words.model.columns.actions}</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.replica} class={row.in_flight === most && stands ? "busiest-row" : ""}>
                <Cells
                  row={row}
                  threshold={model.routing.spill_threshold}
                  places={columns.some((column) => column.key === "places")}
                  heldTone={heldTone(model.routing)}
                />
                <td class="row-actions">
                  {row.drained ? (
                    <Button
                      onClick={() => void undrain(model.name, row.replica)}
                      disabled={!mayChange()}
                      label={`${words.model.undrain} ${row.replica}`}
                    >
                      {words.model.undrain}
                    </Button>
                  ) : (
                    <Button onClick={() => ask(row)} disabled={!mayChange()} label={`${words.model.drain} ${row.replica}`}>
                      {words.model.drain}
                    </Button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {question && <Ask question={question} onClose={() => setQuestion(null)} />}
    </>
  );
}

function Cells(props: { row: Row; threshold: number; places: boolean; heldTone: "auto" | "blue" }) {
  const words = texts.value;
  const { row } = props;
  const held = row.kv_cache_tokens ? row.resident_tokens / row.kv_cache_tokens : null;
  return (
    <>
      <th scope="row" class="replica-name">
        <Dot tone={replicaTone(row)} /> {row.replica} <ReplicaState row={row} />
      </th>
      <td class={`right strong ${row.in_flight > props.threshold ? "above" : ""}`}>{count(row.in_flight)}</td>
      <td class="right">{count(row.sticky)}</td>
      <td class="right">{count(row.spilled_in)}</td>
      <td class="right">{count(row.client_pinned)}</td>
      <td class="right">
        {count(row.running)} / {count(row.waiting)}
      </td>
      <td class="right">
        <Meter ratio={row.kv_used_ratio} text={percent(row.kv_used_ratio)} label={words.model.columns.kvUsed} />
      </td>
      <td class="right strong">{percent(row.hour.cached_ratio, 1)}</td>
      <td class="right">
        {seconds(row.hour.first_byte_p50_s)} / {seconds(row.hour.first_byte_p95_s)}
      </td>
      <td class="right">{percent(row.prefix_hit_ratio, 1)}</td>
      <td class="right">{count(row.placed)}</td>
      <td class="right">{count(row.rehomed_in)}</td>
      <td class="right">{count(row.conversations)}</td>
      <td class="right">
        <Meter
          ratio={held}
          text={held === null ? compact(row.resident_tokens) : percent(held)}
          label={words.model.columns.held}
          tone={props.heldTone}
        />
      </td>
      {props.places && <Places row={row} />}
    </>
  );
}

function Places(props: { row: Row }) {
  const { row } = props;
  const title = row.reserved_tokens == null ? {} : { title: texts.value.room.placesNote(compact(row.reserved_tokens)) };
  return (
    <td class="right" {...title}>
      {count(row.residents)}
    </td>
  );
}

function ReplicaState(props: { row: ReplicaRow }) {
  const words = texts.value.state;
  const { row } = props;
  const notes = [
    ...(row.state === "ready" ? [] : [words.replica[row.state]]),
    ...(row.drained && row.state === "ready" ? [words.drained] : []),
    ...(row.stalled ? [words.stalled] : []),
  ];
  return (
    <>
      {notes.map((note) => (
        <Badge key={note} tone={replicaTone(row)}>
          {note}
        </Badge>
      ))}
      {row.suspect && !row.stalled && (
        <Badge tone="warning" title={words.suspectMeans}>
          {words.suspect}
        </Badge>
      )}
      {notes.length === 0 && !row.suspect && <span class="hidden">{words.replica[row.state]}</span>}
    </>
  );
}
