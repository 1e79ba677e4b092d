// 接口代码的中文说明。

import type { Decision, EnginePhase, ModelState, Operation, Outcome, PinVerdict, ReplicaState } from "../api/types";
import type { CheckCode, ClientKind, OwnCode, RequestKind } from "./codes";

export const decision: Record<Decision | "refused" | "left", string> = {
  placed: "新放置",
  sticky: "粘滞",
  spilled: "溢出",
  client_pinned: "客户端固定",
  rehomed: "迁移",
  balanced: "均衡",
  unrouted: "未路由",
  refused: "已拒绝",
  left: "已离开",
};
export const decisionMeans: Record<Decision | "refused" | "left", string> = {
  placed: "新对话，放到负载最低的副本。",
  sticky: "后续轮次，回到已经读过该对话的副本。",
  spilled: "归属副本超过溢出阈值，这一轮由其他副本处理。",
  client_pinned: "客户端自己指定了副本。",
  rehomed: "归属副本丢失、被排空，或已不再持有其上下文，对话有了新的归属。",
  balanced: "未识别出对话，或是辅助请求：发往负载最低的副本，不做绑定。",
  unrouted: "Warden 没有选择副本：亲和性已关闭，或该端点忽略副本选择。",
  refused: "没有转发：没有副本可以处理，或等候室已满。",
  left: "没有转发：客户端在等候期间离开了。",
};
export const outcome: Record<Outcome, string> = {
  ok: "成功",
  client_error: "客户端错误",
  failed: "失败",
  timeout: "超时",
  cancelled: "已取消",
  refused: "已拒绝",
};
export const replicaState: Record<ReplicaState, string> = { starting: "启动中", ready: "就绪", draining: "排空中", down: "不可用" };
export const modelState: Record<ModelState, string> = { ok: "一切正常", warning: "需要留意", fault: "故障", starting: "启动中" };
export const phase: Record<EnginePhase, string> = {
  starting: "启动中",
  running: "运行中",
  stopping: "停止中",
  backing_off: "已崩溃，稍后自动重启",
  failed: "启动失败",
  stuck: "卡住",
  stopped: "已停止",
};
export const pinState: Record<PinVerdict, string> = {
  verified: "副本指定已验证",
  unverified: "副本指定尚未测试",
  failed: "副本指定未被遵守",
};
export const client: Record<ClientKind, string> = {
  "claude-code": "Claude Code",
  codex: "Codex",
  opencode: "OpenCode",
  openai: "OpenAI SDK",
  anthropic: "Anthropic SDK",
  curl: "curl",
  other: "其他",
};
export const kind: Record<RequestKind, string> = { main: "主对话", subagent: "子智能体", auxiliary: "辅助", compaction: "压缩" };
export const opKind: Record<Operation["kind"], string> = { restart: "重启", "rolling-restart": "滚动重启" };
export const opState: Record<Operation["state"], string> = { running: "进行中", done: "已完成", failed: "提前结束", cancelled: "已取消" };
export const opStep: Record<NonNullable<Operation["step"]>, string> = {
  draining: "不再接收新请求，等待未完成的请求",
  stopping: "正在停止进程",
  starting: "等待恢复服务",
};

export const checks: Record<CheckCode, { title: string; todo: string }> = {
  replicas: { title: "并非所有副本都在接收请求", todo: "每个引擎都会说明自己的状态：见“引擎”卡片。" },
  panic: { title: "所有引擎的探测都失败", todo: "请求仍会尝试发送。检查 Warden 与引擎之间的网络，以及引擎是否过载。" },
  engine_down: { title: "有引擎没有响应", todo: "启动它，或检查为何无法访问。" },
  engine_hangs: { title: "有引擎失去响应", todo: "查看日志，然后点击“重启”：已发给它的请求不会再有回答。" },
  engine_starting: { title: "有引擎正在启动", todo: "请等待：大模型需要几分钟。日志会显示进度。" },
  engine_failed: { title: "有引擎无法启动", todo: "查看日志，排除原因后点击“重启”。" },
  engine_stuck: { title: "旧的引擎进程没有结束", todo: "不会在旁边再启动新的进程。请在主机上用 ps 和 nvidia-smi 查看。" },
  engine_crashed: { title: "有引擎崩溃", todo: "会自动重新启动。如果反复发生，请查看日志。" },
  engine_stopping: { title: "有引擎正在停止", todo: "请等待。" },
  engine_stopped: { title: "有引擎已停止", todo: "点击“重启”来启动它。" },
  engine_outdated: { title: "有引擎仍以旧命令运行", todo: "滚动重启后新命令生效。" },
  keys_unreadable: {
    title: "无法读取 API 密钥",
    todo: "请将 keys.json 的属主改回运行 warden 的用户（chown），或恢复完好的文件。重启前原有密钥仍有效，重启后全部失效。",
  },
  no_keys: {
    title: "还没有 API 密钥",
    todo: "在“密钥”页面或用 lmwarden keys create NAME 创建之前，所有请求都会被拒绝。",
  },
  orphan: { title: "旧进程无法结束", todo: "它们可能占用 GPU。请在主机上用 ps 和 nvidia-smi 查看。" },
  no_metrics: { title: "有引擎没有指标", todo: "启动 vLLM 时不要使用 --disable-log-stats，并让 Warden 能访问 /metrics。" },
  stale_metrics: { title: "有引擎的指标已过时", todo: "检查引擎是否过载或网络是否缓慢。Warden 继续使用自己的计数。" },
  pin_failed: {
    title: "有引擎不遵守指定的 rank",
    todo: "发往那里的请求没有亲和性。检查是否有代理丢弃了 X-data-parallel-rank 头，换用支持它的 vLLM，或每个副本运行一个服务。",
  },
  pin_unverified: { title: "尚不清楚引擎是否遵守指定的 rank", todo: "会在较空闲时再次测试。" },
  no_usage_details: {
    title: "有引擎不报告缓存用量",
    todo: "启动 vLLM 时加上 --enable-prompt-tokens-details。在此之前所有提示都算作计算。",
  },
  same_engine: { title: "同一台服务器被写了多次", todo: "请只用一个地址写一次。在此之前，它的副本和缓存按每个名字各算一次。" },
  stalled: { title: "有副本有任务却没有进展", todo: "它不再接收新对话。如果没有恢复，请重启其引擎。" },
  drained: { title: "有副本被手动移出", todo: "它不再接收新请求。可以服务时，在“数据并行路由”卡片的该行点击“放回”。" },
  restart_failed: { title: "上一次重启提前结束", todo: "排除原因后重新开始。" },
  max_num_seqs: {
    title: "max_num_seqs 未知",
    todo: "溢出阈值只是猜测。请在 [models.engine] 下设置 max_num_seqs，或直接设置阈值。",
  },
  affinity_off: {
    title: "亲和性已关闭",
    todo: "如果不是有意为之，请在“数据并行路由”卡片上打开“亲和性”开关。在那里更改的内容重启后仍保留。",
  },
  waiting_room: {
    title: "等候室让部分请求等候",
    todo: "工作中的智能体超过缓存所能容纳。减少同时运行的智能体，增加副本，或配置 CPU 层（kv_offload_gib[，每个副本至少 {tier_tokens} token][，即 {tier_gib} GiB]），即可不再等候。",
  },
  cpu_tier: {
    title: "CPU 层会有帮助",
    todo: "在 [models.engine] 下设置 kv_offload_gib，或使用 vLLM 的 --kv-offloading-size[：每个副本至少 {tier_tokens} token][，即 {tier_gib} GiB]。",
  },
  context_too_large: { title: "上下文可能超过单个缓存", todo: "用较小的 --max-model-len 启动 vLLM，或给 KV 缓存更多显存。" },
  contexts_do_not_fit: {
    title: "对话放不进缓存",
    todo: "减少同时运行的智能体，缩短上下文，或增加缓存（CPU 层：kv_offload_gib[，每个副本至少 {tier_tokens} token][，即 {tier_gib} GiB]）。",
  },
  no_session_id: { title: "许多请求没有会话 id", todo: "按“连接客户端”页面设置客户端，或在 client.session_headers 中写明其请求头。" },
  prefix_changes: { title: "对话留在原副本，但缓存很少命中", todo: "提示的开头有内容在变化。“前缀破坏”页面会说明是什么。" },
  ledger: { title: "历史没有写入", todo: "请求仍正常服务。请清理数据目录所在的磁盘。" },
  ledger_dropped: { title: "部分历史记录丢失", todo: "为数据目录换更快的磁盘，或提高 storage.max_queued_rows。" },
  data_loop: { title: "转发请求的部分停住了", todo: "重启 Warden。日志会说明停在哪里。" },
  client_open: {
    title: "任何能访问客户端端口的人都可以使用",
    todo: "设置 client.require_key = true 并在“密钥”页面创建密钥，或把端口绑定到 127.0.0.1。",
  },
  console_open: { title: "控制台可从外部访问", todo: "设置密码，或绑定到 127.0.0.1 并使用隧道。" },
};

export const ownCodes: Record<OwnCode, string> = {
  model_not_found: "未知模型",
  not_found: "没有这个路径",
  invalid_api_key: "密钥缺失或错误",
  invalid_json: "正文不是 JSON 对象",
  model_missing: "没有写明模型",
  model_invalid: "模型不是字符串",
  invalid_replica: "没有这个副本",
  previous_response_not_found: "未知的上一个响应",
  request_too_large: "正文过大",
  unsupported_coding: "不支持的压缩",
  invalid_coding: "压缩数据损坏",
  malformed: "不是有效的 HTTP",
  foreign_page: "来自其他来源的网页",
  unknown_expectation: "未知的 Expect",
  head_too_large: "请求头过大",
  unknown_version: "未知的 HTTP 版本",
  invalid_request: "无效请求",
  shutting_down: "正在关闭",
  overloaded: "一时过多",
};
