// API keys: who has one, how much each is used, making and revoking them.

import { useState } from "preact/hooks";
import { change, mayChange } from "../api/client";
import type { ApiKey, KeyPage } from "../api/types";
import { compact, count, dateTime, unix, when } from "../format";
import { texts } from "../i18n";
import { href } from "../route";
import { Button, Card, CopyButton, Empty, LoadError, Note, PageTitle, Scroll } from "../ui/basics";
import { Confirm, Dialog, run } from "../ui/dialog";
import { useResource } from "../ui/hooks";
import { modelNames } from "../ui/model-select";

const REFRESH_MS = 10_000;
const NAME = /^[A-Za-z0-9._-]{1,64}$/;

export function Keys() {
  const words = texts.value.keys;
  const keys = useResource<KeyPage>("/api/keys", REFRESH_MS);
  const [made, setMade] = useState<{ name: string; key: string } | null>(null);
  const [revoking, setRevoking] = useState<string | null>(null);
  const create = (name: string, models: string[] | null): Promise<boolean> =>
    run(async () => {
      setMade(await change<{ name: string; key: string }>("POST", "/api/keys", models === null ? { name } : { name, models }));
      keys.reload();
    });
  const revoke = (name: string): void => void run(() => change("DELETE", `/api/keys/${encodeURIComponent(name)}`)).then(keys.reload);
  return (
    <>
      <PageTitle title={words.title}>{words.title}</PageTitle>
      <p class="intro">{words.intro}</p>
      <Card>
        {mayChange() ? <Create onCreate={create} /> : <p class="hint">{texts.value.common.readOnly}</p>}
        <LoadError error={keys.error} retry={keys.reload} />
        {keys.data?.keyless === "everybody" && <Note tone="warning">{words.keyless.everybody}</Note>}
        {keys.data &&
          (keys.data.items.length ? <Table items={keys.data.items} onRevoke={setRevoking} /> : <None keyless={keys.data.keyless} />)}
      </Card>
      {made && <Once made={made} onClose={() => setMade(null)} />}
      {revoking && (
        <Confirm
          title={words.confirm(revoking)}
          text={words.confirmText}
          action={words.revoke}
          onClose={() => setRevoking(null)}
          onConfirm={() => revoke(revoking)}
        />
      )}
    </>
  );
}

function Create(props: { onCreate: (name: string, models: string[] | null) => Promise<boolean> }) {
  const words = texts.value.keys;
  const [name, setName] = useState("");
  // null: all models, also those that will be served later.
  const [models, setModels] = useState<string[] | null>(null);
  const valid = NAME.test(name) && models?.length !== 0;
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!valid || !(await props.onCreate(name, models))) return;
    setName("");
    setModels(null);
  };
  return (
    <form class="create-key" onSubmit={(event) => void submit(event)}>
      <label class="field">
        <span class="field-label">{words.name}</span>
        <input
          type="text"
          value={name}
          maxLength={64}
          autoComplete="off"
          spellcheck={false}
          aria-describedby="key-hint"
          onInput={(event) => setName(event.currentTarget.value)}
        />
      </label>
      <Scope models={models} onChange={setModels} />
      <Button type="submit" kind="primary" disabled={!valid}>
        {words.create}
      </Button>
      <span class="hint" id="key-hint">
        {words.nameHint}
      </span>
    </form>
  );
}

function Scope(props: { models: string[] | null; onChange: (models: string[] | null) => void }) {
  const words = texts.value.keys;
  const served = modelNames();
  if (served.length < 2) return null;
  const { models } = props;
  const tick = (name: string, on: boolean): void =>
    props.onChange((models ?? []).filter((other) => other !== name).concat(on ? [name] : []));
  return (
    <fieldset class="scope">
      <legend class="field-label">{words.models}</legend>
      <label class="check">
        <input type="checkbox" checked={models === null} onChange={(event) => props.onChange(event.currentTarget.checked ? null : [])} />{" "}
        {words.allModels}
      </label>
      {models !== null &&
        served.map((name) => (
          <label key={name} class="check">
            <input type="checkbox" checked={models.includes(name)} onChange={(event) => tick(name, event.currentTarget.checked)} /> {name}
          </label>
        ))}
    </fieldset>
  );
}

function None(props: { keyless: KeyPage["keyless"] }) {
  const words = texts.value.keys;
  const { keyless } = props;
  return (
    <Empty>
      {words.empty} {keyless && keyless !== "everybody" ? words.keyless[keyless] : ""}
    </Empty>
  );
}

function Table(props: { items: ApiKey[]; onRevoke: (name: string) => void }) {
  const words = texts.value.keys;
  return (
    <Scroll label={words.title}>
      <table>
        <thead>
          <tr>
            <th scope="col">{words.name}</th>
            <th scope="col">{words.models}</th>
            <th scope="col">{words.created}</th>
            <th scope="col">{words.lastUsed}</th>
            <th scope="col" class="right">
              {words.requests}
            </th>
            <th scope="col" class="right">
              {words.prompt}
            </th>
            <th scope="col" class="right">
              {words.completion}
            </th>
            <th scope="col">
              <span class="hidden">{words.revoke}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {props.items.map((key) => (
            <tr key={key.name}>
              <th scope="row">
                <a href={href(["requests"], { key: key.name })}>{key.name}</a>
              </th>
              <td>{key.models?.join(", ") ?? <span class="muted">{words.allModels}</span>}</td>
              <td>{dateTime(unix(key.created_at))}</td>
              <td>{key.last_used_at === null ? words.never : when(key.last_used_at)}</td>
              <td class="right">{count(key.requests_24h)}</td>
              <td class="right">{compact(key.prompt_tokens_24h)}</td>
              <td class="right">{compact(key.completion_tokens_24h)}</td>
              <td class="row-actions">
                <Button
                  kind="danger"
                  onClick={() => props.onRevoke(key.name)}
                  disabled={!mayChange()}
                  label={`${words.revoke} ${key.name}`}
                >
                  {words.revoke}
                </Button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

// Escape does not close it: what is shown here cannot be shown again.
function Once(props: { made: { name: string; key: string }; onClose: () => void }) {
  const words = texts.value.keys;
  return (
    <Dialog
      title={words.once(props.made.name)}
      onClose={props.onClose}
      keepOpen
      actions={<Button onClick={props.onClose}>{texts.value.common.close}</Button>}
    >
      <Note tone="warning">{words.onceText}</Note>
      <div class="secret">
        <input class="mono" readOnly value={props.made.key} aria-label={words.key} onFocus={(event) => event.currentTarget.select()} />
        <CopyButton text={props.made.key} />
      </div>
    </Dialog>
  );
}
