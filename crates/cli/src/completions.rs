//! `uxfrm completions SHELL`: a shell's completion script. clap generates the outer command line;
//! for the words after `uxfrm xfrm`, `fou`, `link` and `dev` the script asks the binary, which has
//! the grammars.

use std::io::{self, Write as _};

use clap::CommandFactory as _;
use clap_complete::{Shell as Generator, generate};

use crate::arguments::{Arguments, CompletionsOptions, Shell};

const NAME: &str = "uxfrm";

/// Prints the script.
pub(crate) fn execute(options: &CompletionsOptions) -> anyhow::Result<()> {
    let (generator, words) = match options.shell {
        Shell::Bash => (Generator::Bash, BASH),
        Shell::Zsh => (Generator::Zsh, ZSH),
        Shell::Fish => (Generator::Fish, FISH),
    };
    let mut script = Vec::new();
    generate(generator, &mut Arguments::command(), NAME, &mut script);
    if let Some(end) = script.windows(ZSH_END.len()).position(|text| text == ZSH_END.as_bytes()) {
        script.truncate(end);
    }
    script.extend_from_slice(words.as_bytes());
    Ok(io::stdout().lock().write_all(&script)?)
}

/// Words are quoted because bash breaks unquoted ones at `(` and `,`, which algorithm names
/// contain.
const BASH: &str = r#"
_uxfrm_cli_grammar() {
    if [[ ${COMP_WORDS[1]} == @(xfrm|fou|link|dev) && $COMP_CWORD -ge 2 ]]; then
        local IFS=$'\n'
        COMPREPLY=($("${COMP_WORDS[0]}" "complete-${COMP_WORDS[1]}" -- "${COMP_WORDS[@]:2:COMP_CWORD-1}" 2>/dev/null))
        [[ ${#COMPREPLY[@]} -eq 0 ]] || COMPREPLY=($(printf '%q\n' "${COMPREPLY[@]}"))
    else
        _uxfrm "$@"
    fi
}
complete -F _uxfrm_cli_grammar -o bashdefault -o default uxfrm
"#;

/// The end of clap's script for zsh, which is replaced: else the first completion of a file
/// `_uxfrm` in `fpath` would not use our function.
const ZSH_END: &str = r#"if [ "$funcstack[1]" = "_uxfrm" ]"#;

const ZSH: &str = r#"
_uxfrm_cli_grammar() {
    if [[ ${words[2]} == (xfrm|fou|link|dev) ]] && (( CURRENT >= 3 )); then
        local -a found
        found=("${(@f)$("${words[1]}" "complete-${words[2]}" -- "${(@)words[3,CURRENT]}" 2>/dev/null)}")
        compadd -a found
    else
        _uxfrm "$@"
    fi
}
compdef _uxfrm_cli_grammar uxfrm
# Loaded as a file of `fpath`, by the first completion.
[[ $funcstack[1] != _uxfrm ]] || _uxfrm_cli_grammar "$@"
"#;

const FISH: &str = r#"
function __uxfrm_grammar_words
    set -l words (commandline -opc) (commandline -ct)
    $words[1] complete-$words[2] -- $words[3..-1] 2>/dev/null
end
complete -c uxfrm -n "__fish_seen_subcommand_from xfrm fou link dev" -f -a "(__uxfrm_grammar_words)"
"#;
