// 客户端设置中注释的中文：按片段替换，变量（数字、命令）保持原样。

import type { Texts } from "./en";

export const comments: Texts["connect"]["comments"] = [
  [
    'Claude Code: put these into the shell that starts it (or under "env" in ~/.claude/settings.json).',
    "Claude Code：放进启动它的 shell（或 ~/.claude/settings.json 的 “env” 下）。",
  ],
  ["This warden wants no key, but Claude Code wants to send one.", "Warden 不要求密钥，但 Claude Code 一定要发送一个。"],
  ["All the names that it may ask for lead to this model.", "它可能请求的所有名称都指向这个模型。"],
  [
    "A changing line at the head of the system prompt would make the engine read the whole history anew.",
    "系统提示开头若有一行不断变化，引擎就要重新读取全部历史。",
  ],
  ["Says which call is a subagent's, a title, a compaction.", "说明哪个调用属于子智能体、标题或压缩。"],
  ["The context that the engine really has: then it compacts in time.", "引擎真正拥有的上下文：这样它会及时压缩。"],
  ["Warning: a context of ", "警告：上下文只有 "],
  [" tokens is small. Claude Code asks for ", " token，偏小。Claude Code 会请求 "],
  [" output tokens, and vLLM refuses a request", " 个输出 token，"],
  [
    "that asks for more than the whole context; so it is told to ask for a quarter of it.",
    "而 vLLM 会拒绝超过整个上下文的请求；因此让它只请求四分之一。",
  ],
  ["Tools that come and go change the prompt's beginning, and the cache is lost.", "时有时无的工具会改变提示的开头，缓存随之失效。"],
  ["Its session id is sent by itself. On a terminal start it with: ", "它会自行发送会话 id。在终端中这样启动："],
  [
    "(the mode auto, its own default, has a server of Anthropic check what tools do; here nothing checks it).",
    "（它默认的 auto 模式由 Anthropic 的服务器检查工具的行为；这里没有检查）。",
  ],
  ["Codex: put this into ~/.codex/config.toml.", "Codex：放进 ~/.codex/config.toml。"],
  ["OpenCode: merge this into opencode.json.", "OpenCode：合并到 opencode.json。"],
  [" The key goes into the shell:  ", "密钥放在 shell 中："],
  ["LMWARDEN_KEY must hold a key; one is made with: ", "LMWARDEN_KEY 须为一个密钥，创建方法："],
  [
    "Codex sends its session id by itself (session-id). It speaks /v1/responses, where a vLLM server with",
    "Codex 会自行发送会话 id（session-id）。它使用 /v1/responses，在这个接口上，",
  ],
  [
    "several data-parallel ranks ignores the choice of a rank: run one vLLM server per card to keep its",
    "有多个数据并行 rank 的 vLLM 服务会忽略对 rank 的选择：要让对话留在原处，",
  ],
  ["conversations in place.", "请每块卡运行一个 vLLM 服务。"],
  [
    "OpenCode sends its session id by itself (x-session-id). A release that does not is recognised by how its",
    "OpenCode 会自行发送会话 id（x-session-id）。不发送的版本按对话的开头识别：",
  ],
  ["conversation begins: the same system prompt, tools and first message.", "相同的系统提示、工具和第一条消息。"],
  [
    "OpenAI SDK (Python); any other SDK likewise. One id per conversation keeps it on its replica.",
    "OpenAI SDK（Python），其他 SDK 同理。每个对话一个 id，使其留在自己的副本。",
  ],
  ["curl; -i shows X-LMWarden-Replica and X-LMWarden-Decision.", "curl：-i 会显示 X-LMWarden-Replica 和 X-LMWarden-Decision。"],
];
