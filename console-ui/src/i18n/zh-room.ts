// 等候室的中文说明。

import type { RoomNumbers } from "./codes";
import type { Texts } from "./en";

const need = (n: RoomNumbers, unknown: string): string => (n.demand === null ? unknown : `使用中的对话需要缓存容量的 ${n.demand}`);

export const room: Texts["room"] = {
  title: "等候室",
  state: { engaged: "生效中：部分请求等候", open: "开放：无人等候", off: "已关闭" },
  waiting: "等候中",
  longest: (time) => `最长 ${time}`,
  demand: "需求",
  demandNote: "占缓存容量",
  places: "占用的位置",
  placesNote: (tokens) => `${tokens} token`,
  placesOf: (tokens, all) => `${tokens} / ${all} token`,
  roomFor: "大约还能容纳",
  roomUnit: "个",
  expired: "达到最长等待后放行",
  expiredNote: "自 Warden 启动起",
  chip: (n) => `等候室生效中，${n} 个等候`,
  why: {
    code: {
      engaged: (n) =>
        `生效中：${need(n, "使用中的对话已放不进缓存")}。只让能保住上下文的对话运行，其余在此等候位置，而不是把它们挤出缓存。`,
      emptying: (n) => `即将开放：${need(n, "使用中的对话放得进缓存")}，又都放得下了，等候室稍后开放。`,
      open: (n) => `开放：${need(n, "使用中的对话放得进缓存")}${n.over ? "，超出不多，无需等候" : ""}。每个请求都立即转发。`,
      settling: (n) =>
        `开放：${need(n, "使用中的对话放不进缓存")}，${n.gap === null ? "但还不知道智能体在轮次之间停顿多久" : "若持续数秒，等候室就会生效"}。`,
      no_capacity: () => "开放：引擎没有报告缓存容量，因此不会让任何请求等候。",
      gaps: (n) =>
        `开放：${need(n, "使用中的对话放不进缓存")}，但智能体在轮次之间有停顿（四分之一的停顿超过 ${n.gap ?? "–"}）：留出的位置会空着。`,
      kept: (n) =>
        `开放：${need(n, "使用中的对话放不进缓存")}，但各轮仍能找到自己的上下文${n.tier ? `；缓存之后还有容纳 ${n.tier} token 的 CPU 层` : ""}。`,
    },
    off: "已关闭：即使对话放不进缓存，每个请求也立即转发。",
    noAffinity: "亲和性已关闭，没有对话拥有可等候的位置：每个请求都立即转发。",
  },
  tier: (tokens, gib) =>
    `为每个副本配置${gib === null ? ` ${tokens} token ` : `约 ${gib} GiB（${tokens} token）`}的 CPU 层即可保住缓存丢弃的内容，无需等候：[models.engine] 下的 kv_offload_gib，或 vLLM 的 --kv-offloading-size。`,
  mode: "准入",
  modes: { auto: "自动", off: "关闭" },
  modeMeans: { auto: "仅当使用中的对话放不进缓存时才让请求等候。", off: "从不让请求等候。" },
  prefer: "优先",
  prefers: { balanced: "平衡", median: "中位数", tail: "尾部" },
  preferMeans: {
    balanced: "大多数轮次立即转发，其余等候有限的时间。产出比不用时更多。",
    median: "已有位置的对话保留到结束：一般轮次很快，产出最高，但新来者等得最久。",
    tail: "大家等候的时间相近：最慢的轮次最短，一般轮次较慢。",
  },
  maxWait: "最长等待（秒）",
  maxWaitHint: "等到这么久的请求立即发往其副本，绝不拒绝。1 到 270：客户端在 300 秒时放弃，而回答开始也需要时间。",
  columns: { places: "位置" },
  placesMean: "按等候室的账目在此占有位置的对话，以及这些位置所占的上下文。",
};
