TEMPLATES = {
    "plain": "### Instruction:\n{instruction}\n\n{input}### Response:\n",
    "short": "{instruction}\n{input}\n",
}


class Prompter:
    __slots__ = ("template",)

    def __init__(self, template_name: str = ""):
        self.template = TEMPLATES[template_name or "plain"]

    def generate_prompt(self, instruction, input=None, label=None):
        res = self.template.format(instruction=instruction, input=f"### Input:\n{input}\n\n" if input else "")
        return res + label if label else res
