// How to set a client up, to copy; and a tick when its first request arrives.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "../api/client";
import type { ConnectTexts, Page, RequestRow } from "../api/types";
import { clock, dateTime } from "../format";
import { texts } from "../i18n";
import { modelOf } from "../live";
import { clientName, decisionName, inOtherWords } from "../logic/words";
import { href } from "../route";
import { Card, CopyButton, Dot, Empty, LoadError, Note, PageTitle } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { chosenModel, ModelSelect } from "../ui/model-select";

const POLL_MS = 1500;

export function Connect() {
  const words = texts.value;
  const model = chosenModel(false);
  const { data, error, reload } = useResource<ConnectTexts>(model ? `/api/connect${query({ model })}` : null);
  return (
    <>
      <PageTitle title={words.connect.title}>{words.connect.title}</PageTitle>
      <p class="intro">{words.connect.intro}</p>
      <div class="filters">
        <ModelSelect />
      </div>
      <LoadError error={error} retry={reload} />
      {!data && !error && <Empty>{words.common.loading}</Empty>}
      {data && <Tabs key={data.model} connect={data} />}
      {data && <Tick key={`tick-${data.model}`} connect={data} />}
    </>
  );
}

function Tabs(props: { connect: ConnectTexts }) {
  const words = texts.value;
  const { clients } = props.connect;
  const [chosen, setChosen] = useState(clients[0]?.client ?? "");
  const tabs = useRef<HTMLDivElement>(null);
  const current = clients.find((entry) => entry.client === chosen);
  const text = inOtherWords(current?.text ?? "", words.connect.comments);
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const index = (clients.findIndex((entry) => entry.client === chosen) + step + clients.length) % clients.length;
    setChosen(clients[index]!.client);
    (tabs.current?.children[index] as HTMLElement | undefined)?.focus();
  };
  return (
    <Card class="connect-card">
      <div class="tabs" role="tablist" aria-label={words.connect.client} ref={tabs} onKeyDown={move}>
        {clients.map(({ client }) => (
          <button
            key={client}
            type="button"
            role="tab"
            id={`tab-${client}`}
            aria-selected={client === chosen}
            aria-controls="connect-panel"
            tabIndex={client === chosen ? 0 : -1}
            onClick={() => setChosen(client)}
          >
            {clientName(words, client)}
          </button>
        ))}
      </div>
      {props.connect.key_needed && (
        <Note tone="info">
          {words.connect.keyNeeded} <a href={href(["keys"])}>{words.connect.makeKey}</a>
        </Note>
      )}
      <div role="tabpanel" id="connect-panel" aria-labelledby={`tab-${chosen}`} class="connect-text">
        <pre tabIndex={0}>{text}</pre>
        {current && <CopyButton text={text} label={words.common.labelled(words.common.copy, clientName(words, current.client))} />}
      </div>
    </Card>
  );
}

// Looks for the first request that ended after the page was opened. Ours is the browser's clock and theirs the warden's, so
// the newest row at the beginning is what counts, and not the time.
function Tick(props: { connect: ConnectTexts }) {
  const words = texts.value;
  const { model } = props.connect;
  const [first, setFirst] = useState<RequestRow | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let before: number | null = null;
    const look = async (): Promise<void> => {
      try {
        const page = await get<Page<RequestRow>>(`/api/requests${query({ model, limit: 50 })}`, abort.signal);
        const newest = page.items[0]?.finished_at ?? 0;
        before ??= newest;
        const since = before;
        const arrived = page.items.filter((row) => row.finished_at > since).at(-1);
        if (arrived) {
          setFirst(arrived);
          return;
        }
      } catch {
        /* the head of the page says that the connection is broken */
      }
      if (!abort.signal.aborted) timer = window.setTimeout(() => void look(), POLL_MS);
    };
    void look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [model]);
  const inFlight = modelOf(model)?.routing.in_flight ?? 0;
  return (
    <div class={`tick note ${first ? "ok" : "info"}`} role="status">
      {first ? (
        <>
          <span class="tick-mark" aria-hidden="true">
            ✓
          </span>{" "}
          {words.connect.arrived(
            clientName(words, first.client),
            first.replica ?? "–",
            decisionName(words, first),
            clock(first.finished_at),
          )}
        </>
      ) : (
        <>
          <Dot tone="info" /> <b>{inFlight > 0 ? words.connect.arriving : words.connect.waiting}</b> {words.connect.waitingHint}
        </>
      )}
      {props.connect.first_request_at !== null && !first && (
        <span class="muted"> {words.connect.before(dateTime(props.connect.first_request_at))}</span>
      )}
    </div>
  );
}
