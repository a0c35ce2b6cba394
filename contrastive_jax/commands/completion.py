"""The command ``contrastive-jax completion``: a shell script for Tab completion of modes, configs and options.

eval "$(contrastive-jax completion)"    # in ~/.bashrc, or in ~/.zshrc after `autoload bashcompinit && bashcompinit`
"""

from collections.abc import Sequence

SCRIPT = """_contrastive_jax() {
  local line="${COMP_LINE:0:COMP_POINT}"
  local word="${line##* }"
  COMPREPLY=($(compgen -W "$_contrastive_jax_words" -- "$word"))
  # bash replaces what stands behind the last = alone
  if [[ "$word" == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}"); fi
}
complete -o nospace -o default -F _contrastive_jax contrastive-jax
"""


def words(modes: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words of a command line: flags, modes, config names and config options."""
    from contrastive_jax.config import files, schema

    options = {option.name for option in schema.every()}
    options |= {name.replace("evaluators.*", "evaluators.knn") for name in options}
    return [
        *(f"--{flag}" for flag in flags),
        *(f"--mode={mode}" for mode in modes),
        *(f"--config={name}" for name in files.names()),
        *(f"--config.{name}=" for name in sorted(options) if "*" not in name),
    ]


def script(modes: Sequence[str], flags: Sequence[str]) -> str:
    """Return the script for bash, and for zsh with ``bashcompinit``."""
    listed = "\n".join(words(modes, flags))
    return f"_contrastive_jax_words='\n{listed}\n'\n{SCRIPT}"
