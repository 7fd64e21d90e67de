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
    for object in ["state", "policy", "monitor", "save", "sync"] {
        let _ = writeln!(page, ".SH {}", object.to_uppercase());
        page += match object {
            "save" => SAVE,
            "sync" => SYNC,
            _other => "",
        };
        if ["monitor", "save", "sync"].contains(&object) {
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

const SAVE: &str = r#"Prints all states and policies and the defaults as lines that
.BR "uxfrm xfrm \-batch" ,
.B uxfrm xfrm sync
and a configuration's
.B [xfrm] batch
take, and that make the same again, the oldest first.
.B "uxfrm xfrm save > FILE"
is a backup; keys are in it, so begin with
.BR "umask 077" .
With
.B nokeys
a placeholder stands for each key, and nobody can restore that. With
.B index
policies keep their indexes. Sequence numbers are not in it: the store of sequence numbers
.RB ( "[xfrm] sequences" )
has them. Counts and ages are not either, so limits count from the start again. Left out are larval states, and
policies that are held since the last run.
"#;

const SYNC: &str = r#".I FILE
has lines as
.B save
prints them;
.B \-
is standard input. States and policies of the running gateway become what it says, by the fewest changes: a state that
is the same goes on with its numbers, one whose line has the same keys as well; a policy changes where it stands; what
.I FILE
does not say goes, also what an IKE daemon put in. Packets see all of it at once. One line that is wrong or refused
changes nothing. Each change is a line:
.B +
came,
.B ~
changed,
.B \-
went. A
.I FILE
without any state, policy or default is refused. Defaults that it does not name stay, and so do tunnels, devices,
larval states and policies that are held since the last run. With
.B \-\-dry\-run
nothing is changed. With
.B \-\-keep\-others
nothing goes.
.B uxfrm reload
goes by its files as before: it changes back what they say otherwise, and leaves what only
.B sync
has put in.
"#;

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
.B sport
and
.B dport
take a mask,
.BR 1024/0xfc00 .
.B set\-mark
takes value and mask as they are.
.B mtimer\-thresh
and
.B nat\-keepalive
are words here.
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
What was said does not go together, or no gateway answers;
.B save
found what no line can say.
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
