// The waiting room: how it stands, why, who waits, and what an operator may set. Each control applies at once.

import { mayChange } from "../../api/client";
import { PREFERENCES, type Admission, type ModelDetail } from "../../api/types";
import { compact, count, percent, seconds } from "../../format";
import { texts } from "../../i18n";
import { roomSentence, roomState, tierSentence, type RoomState } from "../../logic/room";
import { Badge, Card, English, Note, Segmented, type Tone } from "../../ui/basics";
import { NumberField } from "../../ui/number-field";
import { Figure, waitingOf } from "../overview";
import { capacityTokens } from "./capacity";
import { patchRouting } from "./commands";

const LEAST_WAIT_S = 1;
const MOST_WAIT_S = 270;
const TONE: Record<RoomState, Tone> = { engaged: "warning", open: "ok", off: "quiet" };

export function WaitingRoomCard(props: { model: ModelDetail }) {
  const words = texts.value.room;
  const { model } = props;
  const { admission } = model.routing;
  const state = roomState(model.routing);
  const why = roomSentence(texts.value, model.routing);
  return (
    <Card title={words.title} class="waiting-room" aside={<Badge tone={TONE[state]}>{words.state[state]}</Badge>}>
      <p class="room-why">{why.english ? <English>{why.text}</English> : why.text}</p>
      <div class="two">
        <div class="room-state">
          {state !== "off" && <Figures model={model} />}
          {admission.tier_advice && state !== "off" && <Note tone="info">{tierSentence(texts.value, admission.tier_advice)}</Note>}
        </div>
        {admission.max_wait_s !== undefined && <Controls name={model.name} admission={admission} maxWaitS={admission.max_wait_s} />}
      </div>
    </Card>
  );
}

function Figures(props: { model: ModelDetail }) {
  const words = texts.value.room;
  const { admission } = props.model.routing;
  const capacity = capacityTokens(props.model);
  const roomFor = admission.room_for ?? props.model.room_for;
  const places = admission.engaged ? (admission.residents ?? null) : null;
  return (
    <dl class="figures-row">
      <Figure
        label={words.waiting}
        value={count(admission.waiting)}
        {...(admission.waiting ? { link: waitingOf(props.model.name) } : {})}
        note={admission.longest_wait_s == null ? "" : words.longest(seconds(admission.longest_wait_s))}
      />
      <Figure label={words.demand} value={percent(admission.demand_ratio)} note={admission.demand_ratio == null ? "" : words.demandNote} />
      {places !== null && (
        <Figure
          label={words.places}
          value={count(places)}
          note={
            admission.reserved_tokens == null
              ? ""
              : capacity === null
                ? words.placesNote(compact(admission.reserved_tokens))
                : words.placesOf(compact(admission.reserved_tokens), compact(capacity))
          }
        />
      )}
      <Figure label={words.roomFor} value={count(roomFor)} note={roomFor == null ? "" : words.roomUnit} />
      <Figure label={words.expired} value={count(admission.wait_expired)} note={admission.wait_expired == null ? "" : words.expiredNote} />
    </dl>
  );
}

function Controls(props: { name: string; admission: Admission; maxWaitS: number }) {
  const words = texts.value.room;
  const { admission } = props;
  const locked = !mayChange();
  const set = (values: Record<string, unknown>): void => void patchRouting(props.name, values);
  const mode = admission.mode === "off" ? "off" : "auto";
  return (
    <div class="room-controls">
      <div class="setting">
        <Segmented
          showLabel
          label={words.mode}
          value={mode}
          options={(["auto", "off"] as const).map((value) => ({ value, label: words.modes[value] }))}
          onChange={(admission) => set({ admission })}
          disabled={locked}
        />
        <p class="hint">{words.modeMeans[mode]}</p>
      </div>
      {admission.prefer !== undefined && (
        <div class="setting">
          <Segmented
            showLabel
            label={words.prefer}
            value={admission.prefer}
            options={PREFERENCES.map((value) => ({ value, label: words.prefers[value] }))}
            onChange={(prefer) => set({ prefer })}
            disabled={locked || mode === "off"}
          />
          <dl class="choices">
            {PREFERENCES.map((value) => (
              <div key={value} class={value === admission.prefer ? "chosen" : ""}>
                <dt>{words.prefers[value]}</dt>
                <dd>{words.preferMeans[value]}</dd>
              </div>
            ))}
          </dl>
        </div>
      )}
      <div class="setting">
        <NumberField
          label={words.maxWait}
          value={props.maxWaitS}
          least={LEAST_WAIT_S}
          most={MOST_WAIT_S}
          locked={locked || mode === "off"}
          onApply={(max_wait_s) => set({ max_wait_s })}
        />
        <p class="hint">{words.maxWaitHint}</p>
      </div>
    </div>
  );
}
