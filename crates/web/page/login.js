// The login form. Without this script the browser sends it by itself.

const form = document.getElementById("login");
const refused = document.getElementById("refused");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  refused.textContent = "";
  const body = new URLSearchParams(new FormData(form));
  try {
    const answer = await fetch(form.action, { method: "POST", body });
    if (answer.ok) {
      location.replace("/");
      return;
    }
    const problem = await answer.json();
    refused.textContent = problem.detail;
  } catch {
    refused.textContent = "uxfrm web does not answer";
  }
  form.elements.token.select();
});
