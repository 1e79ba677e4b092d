// Asked for when a password is set.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, change, loadSession } from "../api/client";
import { span } from "../format";
import { texts } from "../i18n";
import { Button, Note, PageTitle } from "../ui/basics";
import { explain } from "../ui/hooks";

export function SignIn() {
  const words = texts.value.signIn;
  const [password, setPassword] = useState("");
  const [trouble, setTrouble] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await change("POST", "/api/session", { password });
      await loadSession();
    } catch (error) {
      setTrouble(sentence(error));
      setPassword("");
      input.current?.focus();
    }
    setBusy(false);
  };
  const sentence = (error: unknown): string => {
    if (!(error instanceof ApiError)) return explain(error);
    if (error.status === 401) return words.wrong;
    return error.status === 429 ? words.throttled(span(error.retryAfterS ?? 60)) : error.message;
  };
  return (
    <div class="sign-in card">
      <PageTitle title={words.title}>{words.title}</PageTitle>
      <form onSubmit={(event) => void submit(event)}>
        <input
          class="hidden"
          type="text"
          name="username"
          value="operator"
          autoComplete="username"
          readOnly
          tabIndex={-1}
          aria-hidden="true"
        />
        <label class="field">
          <span class="field-label">{words.password}</span>
          <input
            ref={input}
            type="password"
            name="password"
            autoComplete="current-password"
            value={password}
            onInput={(event) => setPassword(event.currentTarget.value)}
          />
        </label>
        <Button type="submit" kind="primary" disabled={busy || !password}>
          {words.button}
        </Button>
      </form>
      {trouble && (
        <Note tone="fault" role="alert">
          {trouble}
        </Note>
      )}
      <p class="hint">{words.hint}</p>
    </div>
  );
}
