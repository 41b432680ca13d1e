"""Words that say what kind of work a request is, in English and Chinese alike.

A concept is counted, never trusted: the classifier learns what each is worth (docs/routing.md). The lists are ours.
Chinese entries are two characters long, because Chinese text is read as overlapping pairs of characters.
"""

from __future__ import annotations

PROVE, DESIGN, ANALYSE, BUILD, COMPOSE, SIMPLE, CHAT, LIMIT, FACT, WHY = range(10)
CONCEPT_NAMES = ("prove", "design", "analyse", "build", "compose", "simple", "chat", "limit", "fact", "why")

_WORDS: dict[int, str] = {
    PROVE: """
        prove proof proofs theorem theorems lemma corollary derive derivation rigorous rigorously rigour formally
        counterexample counterexamples converse induction contradiction integral integrals eigenvalue convergence
        asymptotic bijection isomorphism manifold invariant necessary sufficient monotone bounded
        证明 推导 推出 定理 引理 严格 反例 归纳 充要 收敛 等价 求证 单调 有界 论证 充分 必要 极限 上界 下界
    """,
    DESIGN: """
        design architect architecture scalable scale distributed consistency protocol migrate migration rollout
        rollback sharding scheduler throughput latency failover tenant tenants multi-tenant schema end-to-end interfaces
        modules invariants guarantees trade-offs tradeoffs trade-off constraints optimise optimize optimisation
        optimization formulate decomposition
        设计 架构 方案 迁移 回滚 扩展 分布 一致 协议 调度 吞吐 延迟 租户 权衡 取舍
        接口 模块 高并 并发 容灾 优化 建模 选型
    """,
    ANALYSE: """
        analyse analyze analysis assess evaluate critique compare contrast implications strategy strategic diagnose
        diagnosis reconstruct audit exposure risks evidence inconsistency inconsistencies unproven recommend
        recommendation argue argument premises conflicts conflict resolve liability clause clauses hypotheses hypothesis
        mechanism mechanisms differential hedge
        分析 评估 对比 比较 诊断 推演 拆解 审查 审计 论据 矛盾 策略 战略 风险 证据 前提 漏洞 条款 责任 假设
        机制 结论 利弊 影响 依据 还原 排查
    """,
    BUILD: """
        implement implementation function class script code api bug debug refactor traceback exception deadlock thread
        async test tests query sql index regex docker nginx dockerfile yaml compile compiler parser algorithm algorithms
        complexity component endpoint cron bash python rust java javascript typescript golang ocaml haskell
        实现 代码 函数 脚本 报错 调试 重构 线程 死锁 算法 复杂 编译 解析 正则 索引 组件 程序 语法 类型
    """,
    COMPOSE: """
        essay story poem sonnet article blog speech letter email draft novel chapter lyrics song haiku dialogue plan
        itinerary schedule proposal report brief paragraph words complaint interview roleplay
        作文 小说 文章 演讲 邮件 故事 写一 诗歌 计划 行程 报告 提案 发言 稿子 文案 歌词 剧本 对话 扮演 写首 写篇
    """,
    SIMPLE: """
        translate translation summarise summarize summary title extract classify label convert list rewrite shorten
        spell fix spelling grammar caption rename capital define synonym synonyms meaning mean stand remind play set
        weather timer format json number only
        翻译 翻成 提取 分类 换算 改写 标题 总结 概括 意思 缩写 列出 转成 提醒 播放 天气 首都 近义 同义 单位 格式
        只输 打标
    """,
    CHAT: """
        hi hey hello thanks thank thx ok okay bye goodbye morning evening night cheers welcome lol haha cool great
        perfect sorry please you
        你好 您好 谢谢 多谢 感谢 好的 再见 早上 晚安 早安 哈哈 辛苦 在吗 明白 收到 好嘞 不客 拜拜 晚上
    """,
    LIMIT: """
        must without exactly only least most except unless each every within under between never neither both also
        then per no not any strictly limit limited cannot can't don't should avoid while keep
        必须 不能 至少 最多 不得 只能 恰好 每个 要求 不超 不要 以内 之间 同时 并且 且不 除了 仅限 避免 保持 不许
        各不 超过
    """,
    FACT: """
        what what's which who whose when where how many much long far old big tall is are does did do
        什么 多少 哪里 哪个 谁是 几个 几点 什么 多久 多大 多远 哪年 吗 几天 是不 哪些 啥意 怎么
    """,
    WHY: """
        why explain how reason because cause causes understand intuition teach walk through step steps show
        为什 为啥 解释 原因 原理 为何 讲讲 说明 步骤 怎样 如何 思路 过程 逐步
    """,
}


def _concepts() -> dict[str, int]:
    """Word, or pair of Chinese characters → concept; the first that names it wins."""
    found: dict[str, int] = {}
    for concept, words in _WORDS.items():
        for word in words.split():
            found.setdefault(word, concept)
    return found


CONCEPTS = _concepts()
