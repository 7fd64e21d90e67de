//! The grammar's part of uxfrm-xfrm(8), in roff.

use std::fmt::Write as _;

use uxfrm_cli_grammar::page::{escaped, terms};

use crate::grammar::vocabulary;

/// Sections for behind the synopsis that the command line's own description gives.
#[must_use]
pub fn manual() -> String {
    let mut page = String::new();
    page += ".SH OPTIONS OF XFRM\nAbbreviations are iproute2's: the first word of a list that begins so.\n";
    terms(&mut page, &vocabulary::options());
    for object in ["state", "policy", "monitor"] {
        let _ = writeln!(page, ".SH {}", object.to_uppercase());
        if object == "monitor" {
            terms(&mut page, &vocabulary::commands(object));
            continue;
        }
        for (command, _) in vocabulary::commands(object) {
            let _ = writeln!(page, ".SS {object} {}", escaped(command));
            terms(&mut page, &vocabulary::parts(object, command));
        }
    }
    page += ".SH WORDS\n";
    for (name, words) in vocabulary::notions() {
        let _ = writeln!(page, ".SS {}", escaped(name));
        terms(&mut page, &words);
    }
    page += SECTIONS;
    page
}

const SECTIONS: &str = r#".SH BATCH FILES
A line is what stands behind
.BR "uxfrm xfrm" ,
or a line of a script:
.BR "ip xfrm state add " ...
Comments begin with #, a backslash at the end of a line continues it, quotes keep blanks. Many lines are on their way
at once, so that 100,000 of them take a second or two; a list in the file waits for those before it. A line that fails is
told with its number,
.BR "Command failed FILE:LINE" ,
and without
.B \-force
nothing behind it is carried out.
.SH JSON
With
.B \-json
a list is an array of objects, any other answer one object, and each event of
.B monitor
one object on a line with
.B event
as its first member. Members have the names of the grammar's words. SPIs, marks, keys and bitmaps are hexadecimal
strings; limits without an end, and times that never came, are null; times are seconds since 1970.
.SH DEPARTURES FROM IPROUTE2
.B offload ... dir
tells the device and does not set the state's own
.BR dir .
.B monitor nokeys
hides the keys of states, too.
.B deleteall
deletes sub policies as well. Mode
.B iptfs
and flag
.B cpu\-acquire
are words here.
.SH EXIT STATUS
.TP
0
Done.
.TP
1
What was said does not go together, or no gateway answers.
.TP
2
The gateway refuses it; the reason is in the kernel's words.
.TP
255
A word that is not in the grammar, or a value that its word does not take; also
.BR help .
.SH SEE ALSO
.BR ip\-xfrm (8)
"#;
