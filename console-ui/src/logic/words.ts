// Puts codes and numbers into sentences of the language that is shown.

import type { Candidate, Decision, Params, ReplicaName, Turn, Warning } from "../api/types";
import { count, dateTime, decimal, percent, unix, UNKNOWN } from "../format";
import {
  CAUSES,
  CHECKS,
  CLIENTS,
  KINDS,
  OWN_CODES,
  WHYS,
  type Cause,
  type CauseWords,
  type CheckCode,
  type OwnCode,
  type Why,
} from "../i18n/codes";
import type { Texts } from "../i18n/en";

// The values of the router's own enumeration, where they are not simply the code with blanks.
const WHY_OF_VALUE: Record<string, Why> = {
  "where its prefix is, as a fork": "fork",
  "where a sibling subagent is": "sibling",
  "by the hash of its id": "hash",
  "named by the client": "named",
  "not above the threshold": "not_above",
  "no other replica has fewer": "no_other",
  "above the threshold": "above",
  "not yet down to the level at which it returns": "not_yet_back",
  "its home had just failed": "suspect",
  "its home makes no progress": "stalled",
  "its home was not heard of yet since the warden started": "awaited",
  "where its last turn went": "last_turn",
  "where the waiting room had a place": "room",
  "its engine keeps the response that it continues": "response",
  "this endpoint ignores a rank": "rank_ignored",
};

export function whyCode(why: string | null): Why | null {
  if (!why) return null;
  const code = why.toLowerCase().replaceAll(" ", "_");
  if ((WHYS as readonly string[]).includes(code)) return code as Why;
  return WHY_OF_VALUE[why] ?? null;
}

export function replicaName(name: ReplicaName): string {
  return typeof name === "string" ? name : `${name[0]}/${name[1]}`;
}

type Decided = Pick<Turn, "decision" | "outcome" | "why" | "replica" | "home" | "home_in_flight" | "spill_threshold" | "candidates">;

// What was not sent was refused, or its client left while it waited.
export function decided(turn: Pick<Turn, "decision" | "outcome">): Decision | "refused" | "left" {
  return turn.decision ?? (turn.outcome === "cancelled" ? "left" : "refused");
}

// Why a turn went where it went, with the numbers that the decision used.
export function whySentence(texts: Texts, turn: Decided): string {
  const words = texts.why;
  if (turn.decision === null) return decided(turn) === "left" ? words.left : words.refused;
  const replica = turn.replica ?? words.noReplica;
  const numbers = {
    replica,
    home: turn.home ?? words.itsHome,
    inFlight: count(turn.home_in_flight),
    threshold: count(turn.spill_threshold),
    compared: compared(texts, replica, turn.candidates),
  };
  const code = whyCode(turn.why);
  if (code === null) return texts.decisionMeans[turn.decision];
  if (code === "least_loaded") {
    if (turn.decision === "rehomed") return words.rehomed(numbers);
    if (turn.decision === "balanced") return words.balanced(numbers);
    if (turn.decision === "placed") return words.placed(numbers);
  }
  return words.code[code](numbers);
}

export function byScore(candidates: readonly Candidate[]): Candidate[] {
  return [...candidates].sort((a, b) => a.score - b.score);
}

function compared(texts: Texts, replica: string, candidates: readonly Candidate[] | null): string {
  const words = texts.why;
  if (!candidates?.length) return words.comparedShort({ replica, count: "" });
  const chosen = candidates.find((candidate) => replicaName(candidate.replica) === replica);
  const next = byScore(candidates).find((candidate) => candidate !== chosen);
  if (!chosen || !next) return words.comparedShort({ replica, count: count(candidates.length) });
  return words.compared({
    replica,
    count: count(candidates.length),
    score: decimal(chosen.score, 2),
    next: replicaName(next.replica),
    nextScore: decimal(next.score, 2),
  });
}

export function causeWords(texts: Texts, code: string): CauseWords {
  if ((CAUSES as readonly string[]).includes(code)) return texts.causes[code as Cause];
  return { ...texts.causes.other, title: code.replaceAll("_", " ") };
}

export interface WarningWords {
  title: string;
  // With the numbers; the server's own where there is no translation that all its numbers fit into.
  text: string;
  english: boolean;
  todo: string | null;
}

// A warning or a check in the shown language: its headline, the sentence with the numbers, and what to do.
export function warningWords(texts: Texts, warning: Warning): WarningWords {
  const key = warning.level === "ok" ? `${warning.code}.ok` : warning.code;
  const own = filled(texts, texts.checkTexts[key], warning.params ?? {});
  const sentence = { text: own ?? capital(warning.text), english: own === null };
  if (!(CHECKS as readonly string[]).includes(warning.code)) return { title: "", ...sentence, todo: warning.what_to_do };
  const words = texts.checks[warning.code as CheckCode];
  return { title: words.title, ...sentence, todo: filled(texts, words.todo, warning.params ?? {}) };
}

// A sentence of the server's stands after others in its log; here it stands alone. Names (e0, max_num_seqs) stay.
function capital(sentence: string): string {
  return sentence.replace(/^[a-z]+(?=[ ,:'])/, (word) => word[0]!.toUpperCase() + word.slice(1));
}

// "{engine} does not answer[: {why}]" with the engine's name in it, and the reason where there is one; null: there is no
// such sentence, or a name outside of [] is not known.
export function filled(texts: Texts, template: string | undefined, params: Params): string | null {
  if (template === undefined) return null;
  const told = (name: string): boolean => String(params[name] ?? "") !== "";
  const whole = template.replace(/\[([^\][]*\{[^\][]*)\]/g, (_, part: string) => (namesIn(part).every(told) ? part : ""));
  if (namesIn(whole).some((name) => !(name in params))) return null;
  return whole.replace(/\{(\w+)\}/g, (_, name: string) => paramText(texts, name, params[name]!));
}

function namesIn(template: string): string[] {
  return [...template.matchAll(/\{(\w+)\}/g)].map((match) => match[1]!);
}

function paramText(texts: Texts, name: string, value: string | number): string {
  if (name === "since") return dateTime(unix(value));
  const word = texts.paramWords[name]?.[value];
  if (word) return word;
  if (typeof value === "string") return value;
  return name === "share" || name.endsWith("_ratio") ? percent(value) : count(value);
}

// The comments of a text to copy, in the shown language; all else is for a machine.
export function inOtherWords(text: string, phrases: readonly [string, string][]): string {
  const said = (line: string): string => phrases.reduce((whole, [from, to]) => whole.replaceAll(from, to), line);
  return text
    .split("\n")
    .map((line) => (/^(#|\/\/)/.test(line) ? said(line) : line))
    .join("\n");
}

export function ownAnswer(texts: Texts, code: string): string {
  return (OWN_CODES as readonly string[]).includes(code) ? texts.requests.ownCodes[code as OwnCode] : code.replaceAll("_", " ");
}

export function clientName(texts: Texts, client: string | null): string {
  if (client === null) return UNKNOWN;
  return (CLIENTS as readonly string[]).includes(client) ? texts.client[client as keyof Texts["client"]] : client;
}

export function kindName(texts: Texts, kind: string | null): string | null {
  if (kind === null) return null;
  return (KINDS as readonly string[]).includes(kind) ? texts.kind[kind as keyof Texts["kind"]] : kind;
}

// The status says more only where it is that of an error: a stream that was cut had begun with 200.
export function outcomeText(texts: Texts, turn: Pick<Turn, "outcome" | "status">): string {
  return turn.status >= 400 ? `${texts.outcome[turn.outcome]} ${turn.status}` : texts.outcome[turn.outcome];
}

export function decisionName(texts: Texts, turn: Pick<Turn, "decision" | "outcome">): string {
  return texts.decision[decided(turn)];
}
