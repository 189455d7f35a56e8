/**
 * What the bridge adds to Pi. session.py starts Pi with it and will not go on without it.
 *
 * - A prompt comes as JSON, {"notes": [...], "text": "..."}: what the bridge adds stays apart from the peer's words, and
 *   words that begin with a slash are never read as anything else.
 * - Tools named in BRIDGE_ASK run only after the peer has agreed. Pi itself asks for nothing.
 * - Tools of ours: questions, files for the peer, a todo list, the review of a plan.
 *
 * A dialog's title carries JSON behind TITLE, so that the other side knows what it is about (records.py, dialog_in).
 * Plain JSON Schema and Node's own modules: nothing to install. Which tools the model gets is for --tools to say.
 */
import type { ExtensionAPI, ExtensionContext } from "@earendil-works/pi-coding-agent";
import { randomUUID } from "node:crypto";
import { copyFile, mkdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const VERSION = "1"; // of what stands above; records.py has the same
const TITLE = "bridge:";
const PLAN_ENTRY = "bridge-plan-mode";
const CHANGES = new Set(["bash", "write", "edit"]); // what plan mode holds back
const LOOK_MS = 100;
const SEND_MS = 2 * 60 * 1000;

function said(text: string, isError = false) {
  return { content: [{ type: "text" as const, text }], details: undefined, isError };
}

function sent(ok: boolean, state: string, error: string) {
  return said(JSON.stringify({ sent: ok, state: state || "refused", error: error || null }), !ok);
}

export default function (pi: ExtensionAPI) {
  const ask = new Set((process.env.BRIDGE_ASK ?? "").split(",").filter(Boolean));
  const outbox = process.env.BRIDGE_OUTBOX ?? "";
  let notes: string[] = [];
  let planning = false;

  /** Lay a copy of this file, or a word without one, into the outbox, and wait for what becomes of it. */
  async function offered(source: string | undefined, note: object, signal: AbortSignal | undefined, update: any) {
    const id = randomUUID();
    const name = source ? basename(source) : "";
    await mkdir(source ? join(outbox, id) : outbox, { recursive: true, mode: 0o700 });
    if (source) await copyFile(source, join(outbox, id, name));
    await writeFile(join(outbox, `${id}.part`), JSON.stringify({ name, caption: "", ...note }), { mode: 0o600 });
    await rename(join(outbox, `${id}.part`), join(outbox, `${id}.json`));
    update?.(said("It is on its way.")); // the other side looks into the folder now
    const answer = join(outbox, `${id}.answer`);
    for (let waited = 0; waited < SEND_MS; waited += LOOK_MS) {
      await sleep(LOOK_MS, undefined, { signal });
      const text = await readFile(answer, "utf8").catch(() => undefined);
      if (text === undefined) continue;
      await rm(answer, { force: true });
      return JSON.parse(text) as { ok: boolean; detail: string; state: string };
    }
    return undefined;
  }

  function plan(mode: boolean) {
    if (planning !== mode) {
      planning = mode;
      pi.appendEntry(PLAN_ENTRY, { on: mode }); // the next process that serves this session reads it
    }
  }

  pi.on("session_start", async (_event, ctx) => {
    for (const entry of ctx.sessionManager.getBranch()) {
      if (entry.type === "custom" && entry.customType === PLAN_ENTRY) planning = (entry.data as { on: boolean }).on;
    }
    ctx.ui.setStatus("bridge-supervisor", VERSION);
  });

  pi.on("input", async (event) => {
    const prompt = JSON.parse(event.text) as { notes: string[]; text: string };
    notes = prompt.notes;
    return { action: "transform", text: prompt.text, images: event.images };
  });

  pi.on("message_end", async (event) => {
    if (event.message.role !== "user" || !notes.length) return undefined;
    const before = notes.map((text) => ({ type: "text" as const, text }));
    notes = [];
    const words = event.message.content;
    const parts = typeof words === "string" ? [{ type: "text" as const, text: words }] : words;
    return { message: { ...event.message, content: [...before, ...parts] } };
  });

  pi.on("tool_call", async (event, ctx) => {
    if (planning && CHANGES.has(event.toolName)) {
      const reason = "Plan mode is on: nothing may be changed until the user has approved a plan (exit_plan_mode).";
      return { block: true, reason };
    }
    if (!ask.has(event.toolName)) return undefined;
    const title = TITLE + JSON.stringify({ about: "permission", tool: event.toolName, input: event.input });
    const yes = await ctx.ui.confirm(title, "", { signal: ctx.signal });
    return yes ? undefined : { block: true, reason: "The user did not allow this. Do not try it another way." };
  });

  pi.registerTool({
    name: "ask_user_question",
    label: "Ask",
    description:
      "Ask the user one question and wait for the answer. With options they pick one by its number; set `other` if an " +
      "answer in their own words makes sense too. Without options they type the answer.",
    parameters: {
      type: "object",
      properties: {
        question: { type: "string" },
        options: { type: "array", items: { type: "string" } },
        other: { type: "boolean" },
      },
      required: ["question"],
    },
    async execute(_id: string, input: any, signal: AbortSignal | undefined, _update: unknown, ctx: ExtensionContext) {
      const title = TITLE + JSON.stringify({ about: "question", title: input.question, other: input.other === true });
      const answer = input.options?.length
        ? await ctx.ui.select(title, input.options, { signal })
        : await ctx.ui.input(title, "", { signal });
      return said(answer === undefined ? "The user did not answer." : `The user answered: ${answer}`);
    },
  });

  pi.registerTool({
    name: "todo",
    label: "Todo",
    description: "Keep the list of what is to do. Each call replaces the whole list.",
    parameters: {
      type: "object",
      properties: {
        items: {
          type: "array",
          items: {
            type: "object",
            properties: {
              text: { type: "string" },
              status: { type: "string", enum: ["pending", "in_progress", "completed"] },
            },
            required: ["text", "status"],
          },
        },
      },
      required: ["items"],
    },
    async execute(_id: string, input: any) {
      const open = input.items.filter((item: any) => item.status !== "completed").length;
      return said(`${input.items.length} on the list, ${open} of them open.`);
    },
  });

  pi.registerTool({
    name: "send_file",
    label: "Send file",
    description: "Send a file to the user's phone, pictures as pictures. `caption` is the line that comes with it.",
    parameters: {
      type: "object",
      properties: { path: { type: "string" }, caption: { type: "string" } },
      required: ["path"],
    },
    async execute(_id: string, input: any, signal: AbortSignal | undefined, update: any, ctx: ExtensionContext) {
      const source = resolve(ctx.cwd, input.path);
      if (!(await stat(source)).isFile()) return said("That is no file.", true);
      const answer = await offered(source, { caption: input.caption ?? "" }, signal, update);
      if (answer) return said(answer.ok ? "The file was sent." : `The file was not sent: ${answer.detail}`, !answer.ok);
      return said("Nobody said whether the file was sent.", true);
    },
  });

  pi.registerTool({
    name: "send",
    label: "Send",
    description:
      "Send your operator one picture now, apart from your answer. Text is refused while they wait for the answer: it " +
      "belongs there. Gives back {sent, state, error}.",
    parameters: {
      type: "object",
      properties: { text: { type: "string" }, image: { type: "string" } },
    },
    async execute(call: string, input: any, signal: AbortSignal | undefined, update: any, ctx: ExtensionContext) {
      const text = String(input.text ?? "");
      const image = String(input.image ?? "");
      if (!text === !image) return sent(false, "refused", "either `text` or `image`, not both and not neither");
      if (text.length > 4000 || image.length > 4096) return sent(false, "refused", "too long");
      const source = image ? resolve(ctx.cwd, image) : undefined;
      if (source && !(await stat(source)).isFile()) return sent(false, "refused", "That is no file.");
      const answer = await offered(source, { send: { call, text } }, signal, update);
      return answer ? sent(answer.ok, answer.state, answer.detail) : sent(false, "unknown", "nobody said what became of it");
    },
  });

  pi.registerTool({
    name: "exit_plan_mode",
    label: "Plan review",
    description:
      "Show the user a plan (Markdown) and ask whether to carry it out. Use it before larger changes when the user " +
      "wants a plan first, and again after revising one. Nothing of the plan may be carried out before they agree.",
    parameters: {
      type: "object",
      properties: { title: { type: "string" }, plan: { type: "string" } },
      required: ["plan"],
    },
    async execute(_id: string, input: any, _signal: unknown, _update: unknown, ctx: ExtensionContext) {
      const name = `plan-${new Date().toISOString().slice(0, 19).replace(/[-:]/g, "").replace("T", "-")}.md`;
      await writeFile(join(ctx.cwd, name), input.plan.endsWith("\n") ? input.plan : `${input.plan}\n`);
      const about = { about: "plan", title: input.title ?? "", file: name };
      const answer = await ctx.ui.editor(TITLE + JSON.stringify(about), input.plan);
      const kept = `The plan stays in ${name}.`;
      switch (answer) {
        case "go":
          plan(false);
          return said(`The user approved the plan: carry it out now. ${kept}`);
        case "keep":
          plan(true);
          return said(
            "The user wants to go on planning: change nothing yet. When they want to leave plan mode, call " +
              `cancel_plan_mode. ${kept}`,
          );
        case "leave":
          plan(false);
          return said(`The user left plan mode: do not carry the plan out. ${kept}`);
        case undefined:
          plan(false);
          return said(`The user did not approve the plan: do not carry it out. Plan mode is off. ${kept}`);
        default: {
          plan(true);
          const wish = answer.replace(/^changes:/, "");
          return said(`The user wants changes. Revise the plan and call exit_plan_mode again. They say:\n${wish}`);
        }
      }
    },
  });

  pi.registerTool({
    name: "cancel_plan_mode",
    label: "Leave plan mode",
    description: "Leave plan mode without carrying a plan out, when the user says so.",
    parameters: { type: "object", properties: {} },
    async execute() {
      plan(false);
      return said("Plan mode is off.");
    },
  });
}
