//! Shell text of pages, as far as they use it: blocks, quotes, pipes, here-documents.

/// What placeholders stand for where a number or address is asked for.
const PLACEHOLDERS: [(&str, &str); 17] = [
    ("SRC", "10.1.0.1"),
    ("DST", "10.2.0.1"),
    ("HOST", "10.2.0.1"),
    ("OWN", "10.1.0.1"),
    ("PEER", "192.0.2.2"),
    ("ADDRESS", "192.0.2.2"),
    ("SPI", "0x1001"),
    ("PROTO", "tcp"),
    ("PORT", "443"),
    ("N", "5"),
    ("SECONDS", "5"),
    ("INDEX", "8"),
    ("REASON", "in_no_state"),
    ("REQID", "1"),
    ("KIND", "ipip"),
    ("OPTIONS", "nopmtudisc"),
    ("COMMAND", "status"),
];

/// The command lines of a page's blocks, whole where they go over several lines.
pub(super) fn lines_of_blocks(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut block: Option<String> = None;
    let (mut text, mut here): (String, Option<String>) = Default::default();
    for line in page.lines() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language.to_owned()) };
            continue;
        }
        let line = match block.as_deref() {
            Some("sh") => line,
            // Behind the prompt; the rest is what is printed.
            Some("console") => match line.strip_prefix("# ") {
                Some(line) => line,
                None => continue,
            },
            Some(_) | None => continue,
        };
        if let Some(end) = &here {
            if line == end {
                here = None;
            }
            continue;
        }
        here = heredoc(line);
        match line.strip_suffix('\\') {
            // Within a list of words the rest begins at once.
            Some(begin) => text.push_str(begin),
            None => {
                text.push_str(line);
                lines.push(std::mem::take(&mut text));
            }
        }
    }
    lines
}

/// The word that ends a here-document, if one begins.
fn heredoc(line: &str) -> Option<String> {
    let (_, behind) = line.split_once("<<")?;
    Some(behind.split_whitespace().next()?.trim_matches('\'').to_owned())
}

/// What stands between backticks outside of blocks and begins with our name. Of an enumeration with
/// `…`, `[` or `|` only its sense is meant.
pub(super) fn inline(page: &str) -> Vec<String> {
    let mut prose = String::new();
    let mut is_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            prose.push_str(line.trim());
            prose.push(' ');
        }
    }
    let codes = prose.split('`').skip(1).step_by(2);
    let is_whole =
        |code: &&str| code.starts_with("uxfrm ") && !code.contains(['…', '[', '|', '\\']);
    codes.filter(is_whole).map(str::to_owned).collect()
}

/// The simple commands of a line, each in words.
pub(super) fn commands(line: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut word: Option<String> = None;
    let (mut quote, mut skips) = (None, false);
    let end = |word: &mut Option<String>, all: &mut Vec<Vec<String>>, skips: &mut bool| {
        if let (Some(word), Some(last)) = (word.take(), all.last_mut())
            && !std::mem::take(skips)
        {
            last.push(word);
        }
    };
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => end(&mut word, &mut all, &mut skips),
            (None, '>' | '<') => {
                // `2>`: the number belongs to it.
                if word.as_ref().is_some_and(|word| word.parse::<u8>().is_ok()) {
                    word = None;
                }
                end(&mut word, &mut all, &mut skips);
                skips = true;
            }
            (None, '|' | ';' | '&' | '(' | ')') => {
                end(&mut word, &mut all, &mut skips);
                all.push(Vec::new());
            }
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    end(&mut word, &mut all, &mut skips);
    let is_assignment = |word: &String| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| name.chars().all(|each| each.is_ascii_uppercase() || each == '_'))
    };
    let commands = all.into_iter().map(|words| {
        let words = words.into_iter().skip_while(is_assignment);
        words.map(|word| replaced(&word)).collect::<Vec<_>>()
    });
    commands.filter(|words| !words.is_empty()).collect()
}

fn replaced(word: &str) -> String {
    let known = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
    known.map_or_else(|| word.to_owned(), |(_, value)| (*value).to_owned())
}

#[test]
fn shell_text_is_read() {
    let words = |line: &str| commands(line).iter().map(|words| words.join(" ")).collect::<Vec<_>>();
    for (line, expected) in [
        ("uxfrm top -s 'BUSY %'   # sorted", &["uxfrm top -s BUSY %"][..]),
        ("A=1 uxfrm stat | grep -e x && echo", &["uxfrm stat", "grep -e x", "echo"]),
        ("(umask 077; uxfrm xfrm save > FILE)", &["umask 077", "uxfrm xfrm save"]),
        ("uxfrm dev events &", &["uxfrm dev events"]),
        ("uxfrm why SRC DST", &["uxfrm why 10.1.0.1 10.2.0.1"]),
    ] {
        assert_eq!(words(line), expected, "{line}");
    }
    let page = "`uxfrm stat -j` or `uxfrm x …`\n```sh\na \\\n  b\ncat > x <<EOF\nno\nEOF\n```\n";
    assert_eq!(lines_of_blocks(page), ["a b", "cat > x <<EOF"]);
    assert_eq!(inline(page), ["uxfrm stat -j"]);
}
