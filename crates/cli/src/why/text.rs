//! An explanation for people: the flow, a line a step with notes below, the verdict.

use uxfrm_status::explanation::{FlowExplanation, FlowOutcome, StepResult};
use uxfrm_status::text::Colour;

use crate::top::text::escaped;

/// The whole text, with an end of line. Names of interfaces and programs are others' to choose: no
/// letter of them controls a terminal.
pub(super) fn render(explanation: &FlowExplanation, colour: Colour) -> String {
    let FlowExplanation { flow, direction, outcome, verdict, steps, drop, .. } = explanation;
    let mut text = format!("{flow}, dir {direction}\n");
    for step in steps {
        let shade = match step.result {
            StepResult::Passes => GREEN,
            StepResult::Doubtful => YELLOW,
            StepResult::Fails => RED,
        };
        let word = paint(&format!("{:<4}", step.result.word()), shade, colour);
        text += &format!("  {word} {:<8} {}\n", step.stage, escaped(&step.text));
        for note in &step.notes {
            text += &format!("                {}\n", escaped(note));
        }
    }
    let shade = match outcome {
        FlowOutcome::LeavesProtected | FlowOutcome::ComesIn => GREEN,
        FlowOutcome::Waits => YELLOW,
        FlowOutcome::LeavesPlain | FlowOutcome::Dropped => RED,
    };
    text += &format!("{}\n", paint(&escaped(verdict), shade, colour));
    if let Some(advice) = drop {
        for (name, words) in [("cause", &advice.cause), ("next", &advice.next)] {
            if !words.is_empty() {
                text += &format!("  {name}: {words}\n");
            }
        }
    }
    text
}

const RED: u8 = 31;
const GREEN: u8 = 32;
const YELLOW: u8 = 33;

fn paint(words: &str, shade: u8, colour: Colour) -> String {
    match colour {
        Colour::Plain => words.to_owned(),
        Colour::Ansi => format!("\x1b[{shade}m{words}\x1b[0m"),
    }
}
