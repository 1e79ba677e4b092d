// 检查与警告的中文句子：{name} 处填入接口给出的参数，“.ok” 是一切正常时的说法，[…] 只在其中的参数有内容时显示。缺少参数时显示服务端的英文句子。

import type { Texts } from "./en";

const ENDED = "[：{when}以退出状态 {exit_status} 结束][：{when}被信号 {signal} 终止]";
const NEXT_START = "[；{pause_s} 秒后再次启动]";
const LAST_LINE = "[（日志最后一行：{last_line}）]";

export const checkTexts: Texts["checkTexts"] = {
  replicas: "{all} 个副本中 {ready} 个接收请求",
  "replicas.ok": "{all} 个副本中 {ready} 个接收请求",
  panic: "所有引擎的探测都失败，因此仍会尝试发送",
  "engine.ok": "{engine}（{url}）有响应[，版本 {version}]",
  engine_down: "{engine}（{url}）没有响应[：{why}]",
  engine_hangs: "{engine} 的进程在运行但没有响应[：{why}]",
  engine_starting: "{engine} 正在启动[：{step}][，已 {minutes} 分钟][，但 {complaint}]",
  engine_failed: `{engine} 无法启动${ENDED}[：{reason}]${LAST_LINE}`,
  engine_stuck: "{engine} 的旧进程没有结束：{detail}",
  engine_crashed: `{engine} 崩溃了${ENDED}[：{reason}]${NEXT_START}[；正在重新启动（{step}）][，已 {minutes} 分钟]${LAST_LINE}[；但 {complaint}]`,
  engine_stopping: "{engine} 正在停止[：{reason}]",
  engine_stopped: "{engine} 已停止",
  engine_outdated: "{engine} 运行的命令与当前配置不同",
  orphan: "配置中已没有 {engine}，但其进程无法结束：{pids}",
  "metrics.ok": "{engine} 报告其负载",
  no_metrics: "{engine} 没有指标：难以看出其容量和重启",
  stale_metrics: "{engine} 的指标上一次成功读取是在 {age_s} 秒前",
  "pins.ok": "{engine} 遵守在 {paths} 上指定的 rank",
  pin_failed: "{engine} 在 {path} 上不遵守指定的 rank[：{detail}]",
  pin_unverified: "尚不清楚 {engine} 在 {path} 上是否遵守 rank[：{detail}]",
  "usage_details.ok": "{engine} 的回答说明了提示中有多少来自缓存",
  no_usage_details: "{engine} 的回答没有说明提示中有多少来自缓存；全部算作计算",
  same_engine: "此模型的 {count} 个引擎是同一台服务器：{urls}",
  stalled: "{replica} 有请求却没有进展",
  drained: "{replica} 被手动移出，不再接收新请求",
  restart_failed: "上一次重启提前结束：{sentence}",
  max_num_seqs: "max_num_seqs 未知，因此溢出阈值为默认的 {threshold}",
  "max_num_seqs.ok": "溢出阈值为 {threshold}[（{source}）]",
  affinity_off: "亲和性已关闭：对话不会留在自己的副本",
  "context.ok": "{max_model_len} token 的上下文放得进每个副本的缓存",
  context_too_large: "上下文可能增长到 {max_model_len} token，但 {replica} 的缓存只容纳 {tokens}",
  "contexts.ok": "活跃对话的上下文放得进缓存",
  contexts_do_not_fit: "活跃对话的上下文超过缓存容量（token）：{over}",
  waiting_room:
    "使用中的对话需要副本所能保留上下文的 {demand_ratio}：{residents} 个对话占有位置、立即转发，{waiting} 个请求在等候[，最久 {longest_wait_s} 秒]",
  "waiting_room_open.ok": "没有请求在等候位置",
  cpu_tier: "使用中的对话需要缓存容量的 {demand_ratio}，但在轮次之间有停顿：无需等候，其间被丢弃的内容会重新读取",
  "cpu_tier.ok": "CPU 层共保留 {tokens} token 的上下文",
  "session_ids.ok": "{total} 个请求中 {without} 个没有会话 id",
  no_session_id: "{total} 个请求中 {without} 个没有会话 id（{derived} 个按对话开头识别，{none} 个未识别）",
  "prefix.ok": "提示中 {share} 来自缓存",
  prefix_changes: "对话留在自己的副本，但提示中只有 {share} 来自缓存",
  ledger: "历史与归属：{trouble}",
  no_keys: "客户端端口要求密钥，但还没有任何密钥，所有请求都被拒绝",
  keys_unreadable: "新建和吊销的 API 密钥不生效：{trouble}",
  "ledger.ok": "历史与归属已写入",
  ledger_dropped: "磁盘跟不上，丢失了 {rows} 行历史",
  data_loop: "转发请求的部分已有 {age_s} 秒没有动静",
  "data_loop.ok": "请求在转发，自 {since} 起计数",
  console_open: "控制台监听 {host}：能访问该端口的人无需登录即可查看",
  "console_open.ok": "控制台{guard}",
  client_open: "客户端端口监听 {host}：能访问该端口的人无需密钥即可使用",
  "client_open.ok": "客户端端口{guard}",
};

export const paramWords: Texts["paramWords"] = {
  source: { auto: "自动", set: "已设置" },
  when: { starting: "在就绪之前", running: "在运行中" },
  reason: { "being restarted": "将要重启", "being stopped": "不再使用" },
  // vLLM's own words for where its start is, as its log has them.
  step: {
    importing: "正在载入程序",
    "starting the engine": "正在启动引擎",
    "loading weights": "正在加载权重",
    compiling: "正在编译",
    "sizing the KV cache": "正在确定 KV 缓存大小",
    "capturing CUDA graphs": "正在捕获 CUDA graph",
    "starting the server": "正在启动服务",
  },
  guard: { password: "要求密码", key: "要求密钥", this_machine: "只能从本机访问" },
};

export const processTexts: Texts["processTexts"] = {
  starting: "{step}…",
  stopping: "正在停止",
  stopped: "没有运行",
  backing_off: `{when}[以退出状态 {exit_status} 结束][被信号 {signal} 终止]${NEXT_START}`,
  failed: "多次启动失败，已放弃；最近一次{when}[以退出状态 {exit_status} 结束][被信号 {signal} 终止]",
};
