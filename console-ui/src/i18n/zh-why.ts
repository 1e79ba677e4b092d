// 路由决定（带数字）与前缀破坏的中文说明。

import type { Texts } from "./en";

export const why: Texts["why"] = {
  code: {
    least_loaded: (n) => `${n.compared}。`,
    fork: (n) => `这是一个对话的分支，其开头在 ${n.replica} 上，因此去往那里。`,
    sibling: (n) => `有相同开头的兄弟子智能体在 ${n.replica} 上，因此去往那里。`,
    hash: (n) => `按 id 的哈希放置：${n.replica}。`,
    named: (n) => `客户端自己指定了 ${n.replica}。`,
    not_above: (n) => `留在原副本：${n.home} 进行中 ${n.inFlight}，未超过溢出阈值 ${n.threshold}。`,
    no_other: (n) => `留在原副本：${n.home} 进行中 ${n.inFlight}（溢出阈值 ${n.threshold}），但没有其他副本更少。`,
    above: (n) => `归属副本 ${n.home} 进行中 ${n.inFlight}，超过溢出阈值 ${n.threshold}；这一轮由 ${n.replica} 处理。`,
    not_yet_back: (n) =>
      `归属副本 ${n.home} 进行中 ${n.inFlight}，还没有明显低于溢出阈值 ${n.threshold}；之前处理过一轮的 ${n.replica} 继续处理。`,
    suspect: (n) => `归属副本 ${n.home} 刚刚失败；这一轮由 ${n.replica} 处理。`,
    stalled: (n) => `归属副本 ${n.home} 有任务却没有进展；这一轮由 ${n.replica} 处理。`,
    awaited: (n) => `Warden 启动后尚未收到归属副本 ${n.home} 的消息；这一轮由 ${n.replica} 处理。`,
    last_turn: (n) => `去往 ${n.replica}，对话的上一轮也在那里。`,
    room: (n) => `它等候了一个位置；归属副本 ${n.home} 已不再持有其上下文，而 ${n.replica} 有空位。`,
    response: (n) => `它延续一个只有 ${n.replica} 的引擎保存的响应。`,
    affinity_off: () => "亲和性已关闭：由引擎自己的均衡器决定。",
    rank_ignored: () => "该端点忽略副本选择：由引擎自己的均衡器决定。",
  },
  placed: (n) => `新对话：${n.compared}。`,
  rehomed: (n) => `归属副本 ${n.home} 丢失或被排空；新的归属：${n.compared}。`,
  balanced: (n) => `没有需要保持的对话：${n.compared}。`,
  refused: "没有转发：没有副本可以处理，或等候室已满。",
  left: "没有转发：客户端在等候期间离开了。",
  compared: (n) => `${n.replica} 在 ${n.count} 个副本中负载最低（得分 ${n.score}；其次 ${n.next} 为 ${n.nextScore}）`,
  comparedShort: (n) => (n.count ? `${n.replica} 在 ${n.count} 个副本中负载最低` : `${n.replica} 负载最低`),
  noReplica: "由引擎选择",
  itsHome: "归属副本",
};

export const causes: Texts["causes"] = {
  extends: { title: "只有增长", means: "这个请求重复上一个并在其后追加，理应如此。", todo: "无需处理。" },
  first: { title: "第一轮", means: "之前没有可比较的请求。", todo: "无需处理：开头总要读取一次。" },
  compaction: {
    title: "压缩",
    means: "客户端总结了历史，并从总结继续。",
    todo: "告诉客户端上下文的真实大小（见“连接客户端”），使其尽量晚压缩。",
  },
  tools_changed: {
    title: "工具列表变化",
    means: "工具列表位于历史之前。它一变，其后的一切都要重新读取。",
    todo: "Claude Code：ENABLE_TOOL_SEARCH=false。其他：对话期间保持列表及顺序不变；在开始前连接好 MCP 服务。",
  },
  system_changed: {
    title: "系统提示变化",
    means: "系统提示位于最前。它一变，其后的一切都要重新读取。",
    todo: "不要把会变的内容（文件、git 状态、记忆）放进系统提示，放到最后一条消息里。",
  },
  billing_line: {
    title: "开头的计费行",
    means: "Claude Code 在系统提示前放了一行每次请求都变化的内容。",
    todo: "Claude Code：CLAUDE_CODE_ATTRIBUTION_HEADER=0。",
  },
  timestamp: {
    title: "开头的时间或计数",
    means: "提示靠前的部分与上一次只有数字不同：时间戳、日期或计数。",
    todo: "把时间移出系统提示，或只写日期；把时间放到最后一条消息里。",
  },
  system_turn_moved: {
    title: "系统消息移动",
    means: "一条系统消息的位置与之前不同（例如总移到末尾的提醒）。",
    todo: "让客户端把系统消息留在最初的位置。较新的版本可能已经如此。",
  },
  history_edited: {
    title: "历史被修改",
    means: "较早的消息与之前不同：被客户端截断、清理或改写。",
    todo: "关闭旧工具结果的清理，或让它少而大步地进行。",
  },
  evicted: {
    title: "被挤出缓存",
    means: "提示只有增长，对话也在原副本，但历史已不在缓存中。",
    todo: "缓存容不下这么多活跃对话：减少同时运行的数量，增加 KV 缓存显存，或使用 CPU 层（kv_offload_gib）。",
  },
  moved: { title: "由其他副本处理", means: "这一轮去了没有读过历史的副本。", todo: "原因见该轮次。溢出很多时：提高溢出阈值，或增加副本。" },
  spilled: {
    title: "溢出到其他副本",
    means: "归属副本太忙，这一轮去了没有读过历史的副本。",
    todo: "如果经常发生：提高溢出阈值，或增加副本。",
  },
  rehomed: {
    title: "换了归属",
    means: "归属副本丢失或被排空，或在对话等候位置期间已不再持有其上下文；另一个副本必须读取历史。",
    todo: "等候室生效时：见其卡片（减少同时运行的智能体，或增加 CPU 层）。否则请检查是否有引擎失败。",
  },
  unrouted: {
    title: "未路由",
    means: "由引擎自己的均衡器决定这一轮的去向：亲和性已关闭，或该端点忽略副本选择。",
    todo: "开启亲和性。对于忽略副本选择的端点（/v1/responses）：每个副本运行一个 vLLM 服务。",
  },
  engine_restarted: { title: "引擎重启", means: "引擎重启后缓存为空。", todo: "无需处理；如果是崩溃，请查看日志。" },
  other: { title: "其他", means: "缓存比例下降，原因无法判断。", todo: "查看示例。" },
};
