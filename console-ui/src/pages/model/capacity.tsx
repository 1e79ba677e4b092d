// How much the caches hold and how much more fits.

import type { Admission, ModelDetail, Routing } from "../../api/types";
import { compact, count, percent } from "../../format";
import { texts } from "../../i18n";
import { Card, Meter, Note } from "../../ui/basics";

export function capacityTokens(model: ModelDetail): number | null {
  const known = model.routing.replicas.map((row) => row.kv_cache_tokens);
  return known.length && known.every((tokens) => tokens !== null) ? known.reduce<number>((sum, tokens) => sum + (tokens ?? 0), 0) : null;
}

// Where it is known that what is in use fits, a full cache is no trouble: it then holds what was used last.
export function heldTone({ admission }: Pick<Routing, "admission">): "auto" | "blue" {
  return (admission.demand_ratio ?? Infinity) > 1 ? "auto" : "blue";
}

function Full(props: { admission: Admission }) {
  const words = texts.value.model;
  const { demand_ratio, engaged } = props.admission;
  if (demand_ratio != null && demand_ratio <= 1) return <p class="hint">{words.fullIdle(percent(demand_ratio))}</p>;
  return <Note tone="warning">{engaged ? words.fullHeld : words.full}</Note>;
}

export function CapacityCard(props: { model: ModelDetail }) {
  const words = texts.value.model;
  const { model } = props;
  const held = model.held_tokens ?? model.routing.replicas.reduce((sum, row) => sum + row.resident_tokens, 0);
  const capacity = capacityTokens(model);
  const ratio = capacity ? held / capacity : null;
  return (
    <Card title={words.capacity} class="capacity-card">
      <Meter
        wide
        ratio={ratio}
        text={ratio === null ? words.heldOnly(compact(held)) : words.heldOf(percent(ratio), compact(held), compact(capacity))}
        label={words.capacity}
        tone={heldTone(model.routing)}
      />
      {ratio !== null && ratio > 1 && <Full admission={model.routing.admission} />}
      <p class="room">
        {model.room_for === null || model.room_for === undefined ? words.roomUnknown : words.roomFor(count(model.room_for))}{" "}
        {model.mean_context_tokens ? words.meanContext(compact(model.mean_context_tokens)) : ""}
        {held > 0 && model.room_for && model.routing.admission.demand_ratio != null ? ` ${words.roomBeside}` : ""}
      </p>
    </Card>
  );
}
