// What can be done with a whole change set: branch from it, close it, reopen it.

import { field, form, outcome, run, whoFields } from "./actions.js";
import { base } from "./change_set.js";
import { html } from "./html.js";

export function manage(at, head, tools) {
  if (!head.actions || !head.lastCommit) return null;
  const disabled = tools.state.busy;
  const create = (data) => run(tools, "manage", `${base(at)}/branch`, data, (answer) => tools.go(`/change-sets/${at.path.workspace}/${answer.changeSetId}`));
  const open = head.status === "open";
  const mark = (data) => run(tools, "manage", `${base(at)}/${open ? "close" : "reopen"}`, data, () => (open ? "It is closed." : "It is open again."));
  return html`${outcome(tools, "manage")}
    <details class="panel"><summary>${open ? "Create a branch, or close" : "Reopen, or create a branch"}</summary>
      <div class="stack-wide">
        ${form({
          label: "Create a branch",
          fields: [field("name", `A branch of ${head.changeSetId} named`, { most: 64, required: true }), ...whoFields("what the branch is for")],
          button: "Create",
          submit: create,
          disabled,
        })}
        ${form({ label: open ? "Close" : "Reopen", fields: whoFields(open ? "why it is closed" : "why it is reopened"), button: `${open ? "Close" : "Reopen"} ${head.changeSetId}`, submit: mark, disabled })}
        ${open ? html`<p class="dim">A closed change set can be read, and accepts no edits until it is reopened.</p>` : null}
      </div>
    </details>`;
}
