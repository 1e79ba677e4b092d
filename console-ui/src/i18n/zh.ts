// 简体中文。Terms that operators type or read elsewhere (settings, headers, vLLM's words) stay as they are.

import type { Decision, EnginePhase, ModelState, Operation, Outcome, PinVerdict, ReplicaState } from "../api/types";
import type { CheckCode, ClientKind, RequestKind } from "./codes";
import type { Texts } from "./en";
import { causes, why } from "./zh-why";

const decision: Record<Decision | "refused", string> = {
  placed: "新放置", sticky: "留在原副本", spilled: "溢出", client_pinned: "客户端指定", rehomed: "迁移", balanced: "均衡", unrouted: "未路由", refused: "已拒绝",
};
const decisionMeans: Record<Decision | "refused", string> = {
  placed: "新会话，放到负载最低的副本。",
  sticky: "后续轮次，回到已经读过该会话的副本。",
  spilled: "归属副本超过溢出阈值，这一轮由其他副本处理。",
  client_pinned: "客户端自己指定了副本。",
  rehomed: "归属副本丢失或被排空，会话有了新的归属。",
  balanced: "未识别出会话，或是辅助请求：发往负载最低的副本，不做绑定。",
  unrouted: "Warden 没有选择副本：亲和已关闭，或该端点忽略副本选择。",
  refused: "没有转发：没有副本可以处理。",
};
const outcome: Record<Outcome, string> = { ok: "成功", client_error: "客户端错误", failed: "失败", timeout: "超时", cancelled: "已取消", refused: "已拒绝" };
const replicaState: Record<ReplicaState, string> = { starting: "启动中", ready: "就绪", draining: "排空中", down: "不可用" };
const modelState: Record<ModelState, string> = { ok: "一切正常", warning: "需要留意", fault: "故障", starting: "启动中" };
const phase: Record<EnginePhase, string> = {
  starting: "启动中", running: "运行中", stopping: "停止中", backing_off: "已崩溃，稍后自动重启", failed: "启动失败", stuck: "卡住", stopped: "已停止",
};
const pinState: Record<PinVerdict, string> = { verified: "副本指定已验证", unverified: "副本指定尚未测试", failed: "副本指定未被遵守" };
const client: Record<ClientKind, string> = {
  "claude-code": "Claude Code", codex: "Codex", opencode: "OpenCode", openai: "OpenAI SDK", anthropic: "Anthropic SDK", curl: "curl", other: "其他",
};
const kind: Record<RequestKind, string> = { main: "主会话", subagent: "子代理", auxiliary: "辅助", compaction: "压缩" };
const opKind: Record<Operation["kind"], string> = { restart: "重启", "rolling-restart": "滚动重启" };
const opState: Record<Operation["state"], string> = { running: "进行中", done: "已完成", failed: "提前结束", cancelled: "已取消" };
const opStep: Record<NonNullable<Operation["step"]>, string> = { draining: "不再接收新请求，等待未完成的请求", stopping: "正在停止进程", starting: "等待恢复服务" };

const checks: Record<CheckCode, { title: string; todo: string }> = {
  replicas: { title: "并非所有副本都在接收请求", todo: "查看下方的引擎，每个引擎都会说明自己的状态。" },
  panic: { title: "所有引擎的探测都失败", todo: "请求仍会尝试发送。检查 Warden 与引擎之间的网络，以及引擎是否过载。" },
  engine_down: { title: "有引擎没有响应", todo: "启动它，或检查为何无法访问。" },
  engine_starting: { title: "有引擎正在启动", todo: "请等待：大模型需要几分钟。日志会显示进度。" },
  engine_failed: { title: "有引擎无法启动", todo: "查看日志，排除原因后点击“重启”。" },
  engine_stuck: { title: "旧的引擎进程没有结束", todo: "不会在旁边再启动新的进程。请在主机上用 ps 和 nvidia-smi 查看。" },
  engine_crashed: { title: "有引擎崩溃", todo: "会自动重新启动。如果反复发生，请查看日志。" },
  engine_stopping: { title: "有引擎正在停止", todo: "请等待。" },
  engine_stopped: { title: "有引擎已停止", todo: "点击“重启”来启动它。" },
  engine_outdated: { title: "有引擎仍以旧命令运行", todo: "滚动重启后新命令生效。" },
  no_metrics: { title: "有引擎没有指标", todo: "启动 vLLM 时不要使用 --disable-log-stats，并让 Warden 能访问 /metrics。" },
  stale_metrics: { title: "有引擎的指标已过时", todo: "检查引擎是否过载或网络是否缓慢。Warden 继续使用自己的计数。" },
  pin_failed: { title: "有引擎不遵守指定的 rank", todo: "发往那里的请求没有亲和。检查是否有代理丢弃了 X-data-parallel-rank 头，换用支持它的 vLLM，或每个副本运行一个服务。" },
  pin_unverified: { title: "尚不清楚引擎是否遵守指定的 rank", todo: "会在较空闲时再次测试。" },
  no_usage_details: { title: "有引擎不报告缓存用量", todo: "启动 vLLM 时加上 --enable-prompt-tokens-details。在此之前所有提示都算作计算。" },
  stalled: { title: "有副本有任务却没有进展", todo: "它不再接收新会话。如果没有恢复，请重启其引擎。" },
  drained: { title: "有副本被手动移出", todo: "它不再接收新请求。可以服务时，在该行点击“放回”。" },
  restart_failed: { title: "上一次重启提前结束", todo: "排除原因后重新开始。" },
  max_num_seqs: { title: "max_num_seqs 未知", todo: "溢出阈值只是猜测。请在 [models.engine] 下设置 max_num_seqs，或在下方设置阈值。" },
  context_too_large: { title: "上下文可能超过单个缓存", todo: "用较小的 --max-model-len 启动 vLLM，或给 KV 缓存更多显存。" },
  contexts_do_not_fit: { title: "会话放不进缓存", todo: "减少同时运行的代理，缩短上下文，或增加缓存（CPU 层：kv_offload_gib）。" },
  no_session_id: { title: "许多请求没有会话 id", todo: "按“连接客户端”页面设置客户端，或在 client.session_headers 中写明其请求头。" },
  prefix_changes: { title: "会话留在原副本，但缓存很少命中", todo: "提示的开头有内容在变化。“前缀破坏”页面会说明是什么。" },
  ledger: { title: "历史没有写入", todo: "请求仍正常服务。请清理数据目录所在的磁盘。" },
  ledger_dropped: { title: "部分历史记录丢失", todo: "为数据目录换更快的磁盘，或提高 storage.max_queued_rows。" },
  data_loop: { title: "转发请求的部分停住了", todo: "重启 Warden。日志会说明停在哪里。" },
  console_open: { title: "控制台可从外部访问", todo: "设置密码，或绑定到 127.0.0.1 并使用隧道。" },
};

export const zh: Texts = {
  lang: { name: "简体中文", label: "语言" },
  theme: { label: "主题", system: "跟随系统", light: "浅色", dark: "深色" },
  common: {
    unknown: "未知", loading: "加载中…", none: "无", all: "全部", model: "模型", replica: "副本", replicas: "副本", copy: "复制",
    copied: "已复制", cancel: "取消", close: "关闭", apply: "应用", save: "保存", retry: "重试", open: "打开", more: "加载更多", live: "实时",
    tokens: "token", menu: "菜单", skip: "跳到内容", yes: "是", no: "否", details: "详情", total: "合计", download: "下载", time: "时间",
    readOnly: "这里只能查看，不能更改：登录后或在本机上才接受更改。",
    failed: (what) => `操作没有成功：${what}`,
    unreachable: "无法连接到 Warden。",
    ago: (span) => `${span} 前`,
    since: (span) => `已 ${span}`,
    nothing: "暂无内容。",
  },
  nav: {
    main: "页面", overview: "总览", models: "模型", stats: "统计", conversations: "会话", breakers: "前缀破坏", requests: "请求", connect: "连接客户端", keys: "密钥",
    settings: "设置", signOut: "退出登录", checks: "检查",
  },
  live: {
    open: "实时", connecting: "连接中…", broken: "连接已断开", old: (age) => `数据已过 ${age}`,
    brokenLong: (age) => `与 Warden 的连接已断开。您看到的是 ${age}前的数据。正在重试…`,
    stuckLong: (age) => `Warden 有响应，但数据已有 ${age}没有变化。`,
    updated: (version) => `Warden 已更新到 ${version}。`, reload: "重新加载页面",
  },
  signIn: {
    title: "登录", password: "密码", button: "登录", wrong: "密码不正确。", throttled: (wait) => `尝试次数过多，请等待 ${wait}。`, hint: "密码保存在 console.password_file 指定的文件中。",
  },
  state: { model: modelState, replica: replicaState, phase, pins: pinState, engine: { up: "有响应", down: "无响应", starting: "尚无响应" },
    stalled: "没有进展", suspect: "存疑", suspectMeans: "刚才失败或没有响应：暂时不接收新会话。", drained: "已移出" },
  decision, decisionMeans, outcome, client, kind, checks, why, causes,
  overview: {
    title: "总览", ready: (ready, all) => `${all} 个副本中 ${ready} 个就绪`, inFlight: "处理中", waiting: "等待", promptRate: "提示 token/秒", completionRate: "生成 token/秒",
    cachedHour: "近一小时缓存", conversations: "活跃会话", roomFor: "大约还能容纳", roomUnit: "个", warnings: "警告", noWarnings: "没有需要担心的事。", fault: "故障", warning: "警告",
    cachedOf: (rate) => `其中 ${rate} 来自缓存`, ledger: "历史没有写入：", open: (name) => `打开 ${name}`, noModels: "还没有提供任何模型。", noConversations: "还没有代理发来请求。", connectFirst: "连接客户端",
  },
  model: {
    card: "数据并行路由", affinityOn: "亲和已开启", affinityOff: "亲和已关闭", affinity: "亲和",
    threshold: (value, source) => `溢出阈值 ${value}（${source}）`,
    source: { auto: "自动", set: "已设置", default: "默认：max_num_seqs 未知" }, sticky: (value) => `留在原副本 ${value}`, inFlight: (value) => `处理中 ${value}`,
    countingSince: (at, span) => `自 ${at} 起计数（${span}）`, decisions: "路由决定", held: "持有的会话", refused: "已拒绝",
    columns: {
      replica: "副本", inFlight: "处理中", sticky: "留在原副本", spilledIn: "溢入", clientPinned: "客户端指定", running: "运行 / 等待", kvUsed: "KV 使用", hitRate: "前缀缓存命中率",
      placed: "新放置", rehomed: "迁入", conversations: "会话", held: "持有的上下文", actions: "操作",
    },
    columnMeans: {
      inFlight: "Warden 已转发、尚未结束的请求，按自己的计数。", running: "引擎自己的计数：正在运行 / 在引擎内排队。", kvUsed: "此刻运行中的请求占用的 KV 缓存比例，空闲的缓存块不计。",
      hitRate: "来自引擎自己的计数器，自 Warden 启动起。vLLM 0.26 会在每次调度尝试时重复计入等待中的请求。", held: "归属于此的活跃会话的上下文，与该副本 KV 缓存容量之比。",
    },
    busiest: (replica, inFlight, share) => `最忙：${replica}，处理中 ${inFlight}，占全部的 ${share}。`,
    busiestHolds: (conversations, ratio) => `它是 ${conversations} 个活跃会话的归属，占其缓存的 ${ratio}。`,
    busiestSpill: (n) => `有 ${n} 个请求从其他副本溢入。`,
    busiestAbove: "它已超过溢出阈值：后续轮次暂时去往别处。",
    quiet: "没有副本在处理请求。",
    even: (n) => `所有副本处理中均为 ${n}。`,
    capacity: "缓存余量", heldOf: (held, all) => `活跃会话持有 ${held} / ${all} token`, heldOnly: (held) => `活跃会话持有 ${held} token；缓存容量未知`,
    roomFor: (n) => `大约还能容纳 ${n} 个同样大小的会话`, meanContext: (n) => `（平均 ${n} token）`, roomUnknown: "还能容纳多少会话尚不清楚。",
    full: "活跃会话已放不进缓存：副本需要重新读取历史。", room: "等候室", roomOff: "已关闭：请求立即转发。", roomWaiting: (n) => `${n} 个请求在等待位置。`, roomEmpty: "没有人在等待。", roomEngaged: "已启用", roomNotYet: "此版本没有等候室。",
    settings: "设置", settingsHint: "立即生效，Warden 重启后仍保留。", thresholdLabel: "溢出阈值", thresholdAuto: "自动", thresholdHint: "会话归属副本的处理中请求超过此数时，这一轮去往别处。自动：max_num_seqs 的四分之一。",
    placement: "新会话的放置方式", placementChoice: { "least-loaded": "负载最低", hash: "按 id 的哈希" }, admission: "准入", admissionChoice: { auto: "自动", off: "关闭" },
    prefer: "优先", preferChoice: { balanced: "平衡", median: "中位数", tail: "尾部" }, maxWait: "最长等待（秒）", applied: "已应用。", identity: "识别方式",
    identityWords: (sent, derived, none) => `会话 id ${sent}，会话开头 ${derived}，未识别 ${none}`, engines: "引擎", version: "版本", address: "地址", command: "实际命令", copyCommand: "复制命令", logs: "日志", restart: "重启", rolling: "滚动重启", drain: "排空",
    undrain: "放回", scrape: "最近一次指标", restarts: "重启次数", pid: "进程", takenOver: "从之前的 Warden 接管", attached: "不由 Warden 启动", outdated: "仍以旧命令运行", lastLines: "最后几行", pinsTitle: "遵守 rank 的端点", startUp: "启动", ranks: (n) => `${n} 个副本`, oneRank: "1 个副本",
    confirmDrain: (replica) => `排空 ${replica}？`, confirmDrainText: "它不再接收新请求，未完成的请求会结束。它的会话在下一轮得到新的归属。", confirmRestart: (engine) => `重启 ${engine}？`,
    confirmRestartText: "先等未完成的请求结束（最长为排空时间），然后结束进程并重新启动。之后它的缓存是空的。", confirmRolling: "依次重启所有引擎？", confirmRollingText: "每个引擎先排空，前一个恢复服务后才开始下一个。", allowOutage: "即使没有其他副本就绪也继续（期间该模型不提供服务）",
    opTitle: opKind, opState, opStep, opProgress: (done, all) => `${all} 个引擎中已完成 ${done} 个`, opCancel: "停止重启", opAt: (engine, step) => `${engine}：${step}`, aliases: "别名", context: (n) => `上下文 ${n} token`, gone: "没有这个名称的模型。", starting: "尚未收到数据。",
  },
  logs: {
    title: (engine) => `${engine} 的日志`, search: "搜索", searchHint: "行的一部分，不分大小写", follow: "跟随", lines: "行数", download: "下载", empty: "没有匹配的行。", none: "该引擎不由 Warden 启动：日志在启动它的地方。", label: "日志内容",
  },
  connect: {
    title: "连接客户端", intro: "把内容粘贴到客户端读取的位置。之后客户端会发送会话 id，会话因此留在同一个副本。", waiting: "等待第一个请求…", waitingHint: "现在启动客户端。第一个请求到达时这里会出现勾号。",
    arrived: (client, replica, decision, at) => `第一个请求：${client} → ${replica}（${decision}），${at}`, arriving: "正在处理一个请求…", before: (at) => `该模型自 ${at} 起已处理过请求。`, keyNeeded: "需要密钥：", makeKey: "在“密钥”页面创建", client: "客户端",
  },
  stats: {
    title: "统计", range: "范围", ranges: { "1h": "1 小时", "6h": "6 小时", "24h": "24 小时", "7d": "7 天", free: "自定义" }, from: "从", to: "到", tokens: "每秒 token",
    cached: "缓存（实测）", computed: "计算", completion: "生成", prompt: "提示", cachedOver: (ratio, window) => `${window}缓存 ${ratio}`, cachedUnknown: (window) => `${window}没有完成的提示`,
    windows: { "1h": "近一小时", "6h": "近 6 小时", "24h": "近 24 小时", "7d": "近 7 天", free: "此范围内" }, tokensHint: "向上为提示 token，向下为生成 token，刻度各自独立。缓存是引擎对每个已完成请求的计数；引擎未测量的算作计算。",
    latency: "首字节时间", latencyHint: "从收到完整请求到引擎的第一个字节，包含在等候室的时间。", decisions: "按决定划分的请求", busy: "忙碌副本", busyHint: "平均至少运行一个请求的副本数。", kv: "KV 使用", waiting: "运行与等待",
    failures: "失败", perSecond: "每秒", running: "运行", queued: "在引擎中等待", inFlight: "处理中", failed: "失败或超时", refused: "已拒绝", p50: "p50", p95: "p95", p99: "p99", busySeries: "忙碌", kvSeries: "平均 KV 使用", csv: "CSV", png: "PNG", table: "以表格显示", noData: "此范围没有数据。",
    requestsCount: (n) => `${n} 个请求`, exportCsv: (what) => `将“${what}”导出为 CSV`, exportPng: (what) => `将“${what}”导出为 PNG`, logScale: "对数刻度", badRange: "开始时间必须早于结束时间。", gap: "无数据",
  },
  conversations: {
    title: "会话", live: "活跃", all: "全部", state: "显示", sort: "排序", sorts: { last_used: "最近使用", context: "上下文", turns: "轮次" },
    columns: { conversation: "会话", client: "客户端", home: "归属", turns: "轮次", context: "上下文", cached: "上一轮缓存", state: "状态", lastUsed: "最近使用" },
    derived: "推断", derivedMeans: "客户端没有发送会话 id：根据会话的开头识别。", states: { running: "运行中", idle: "空闲", dormant: "休眠" }, subagent: "子代理", shown: (n, total) => `${n} / ${total}`, held: "指针停在列表上时保持顺序不变。", empty: "还没有会话。",
    statesMean: { running: "有一轮正在处理。", idle: "不久前使用过，仍活跃。", dormant: "很久没有使用。" },
  },
  conversation: {
    title: (short) => `会话 ${short}`, tree: "子代理", timeline: "轮次，最新在前", cost: "重新读取的内容", costNone: "没有内容需要重复读取。", costTokens: (n) => `${n} token`, costHint: "之前的轮次已经读过、却又重新计算的提示 token。", parent: "由此启动",
    cachedComputed: (cached, computed) => `缓存 ${cached}，计算 ${computed}`, completion: (n) => `生成 ${n}`, prompt: "提示", timing: { waited: "等候室", first: "排队与预填充", decode: "解码" }, shared: (ratio) => `上一请求开头的 ${ratio} 再次出现`,
    recomputed: (n) => `重新读取 ${n} token`, compared: "比较过的副本", score: "得分", retried: "失败后再次发送", gone: "不认识这个会话。", slow: "为何慢？",
    slowWords: { waited: "大部分时间在等候室等待。", first: "大部分时间用于引擎排队和读取提示。", decode: "大部分时间用于生成回答。" }, turnAt: (at) => `${at} 的轮次`, oldest: "更早的轮次不在此保留。", notMeasured: "未测量",
    candidate: { inFlight: "处理中", conversations: "会话", kv: "KV 使用", held: "持有" },
  },
  breakers: {
    title: "前缀破坏", intro: "留在原副本、却仍需读取超出新增部分的轮次：什么变了，代价多大，该如何设置。", columns: { cause: "变化", client: "客户端", turns: "轮次", tokens: "重新读取的 token", share: "占全部提示 token", example: "示例", todo: "如何设置" },
    window: "时间范围", none: "没有前缀被破坏。每个留在原副本的轮次都在缓存中找到了历史。", windows: { "1h": "1 小时", "24h": "24 小时", "7d": "7 天" },
  },
  requests: {
    title: "请求", intro: "最近 10,000 个。任何地方都不保存文本。", key: "密钥", outcome: "结果", decision: "决定", noKey: "无密钥",
    columns: { time: "结束", conversation: "会话", client: "客户端", key: "密钥", endpoint: "端点", replica: "副本", decision: "决定", outcome: "结果", prompt: "提示", cached: "缓存", completion: "生成", first: "首字节", duration: "用时" },
    empty: "没有匹配的请求。", reset: "清除筛选",
  },
  keys: {
    title: "密钥", intro: "密钥说明是谁在请求。它把不同人的会话分开，并在此显示用量。", name: "名称", nameHint: "1 到 64 个字母、数字、点、连字符或下划线", create: "创建密钥", created: "创建时间", lastUsed: "最近使用", requests: "请求，24 小时", prompt: "提示 token，24 小时", completion: "生成 token，24 小时", revoke: "吊销",
    once: (name) => `密钥“${name}”`, onceText: "只显示这一次，请立即复制：只保留它的哈希。", key: "密钥", confirm: (name) => `吊销“${name}”？`, confirmText: "使用它的人会在一秒内被拒绝，且无法恢复。", never: "从未", empty: "还没有密钥。没有密钥时只接受来自本机的请求。",
  },
  settings: {
    title: "设置", intro: "当前生效的配置。运行中可以更改的在模型页面上；其余在文件中，需要重启。", file: "文件", noFile: "没有文件：默认值与命令行", key: "设置项", value: "值", source: "来源", fromDefault: "默认", search: "搜索", secret: "从不显示机密", empty: "没有匹配的设置。", other: "通用",
  },
  checks_page: { title: "检查", intro: "lmwarden doctor 现在看到的情况。", again: "再次检查", ok: "正常" },
};
