//! What is on the screen, held against pictures of it in `tests/`:
//! `UPDATE=1 cargo test -p uxfrm-cli top::` writes them anew.

use std::{env, fs, path::PathBuf};

use ratatui::{
    Terminal,
    backend::TestBackend,
    style::{Color, Modifier},
};

use super::{
    controls::{Mode, Motion},
    draw::draw,
    model::Connection,
    view::View,
    *,
};
use crate::arguments::NamespaceOptions;

const ASCII: Palette = Palette { colours: Colours::None, characters: Characters::Ascii };
const FULL: Palette = Palette { colours: Colours::Sixteen, characters: Characters::Unicode };

fn model() -> Model {
    let (before, now) = fixture::pair();
    let mut model = Model::new();
    model.take(Ok(Box::new(before)));
    model.take(Ok(Box::new(now)));
    model
}

fn controls(view: View) -> Controls {
    Controls::new(view, String::new(), Duration::from_secs(1))
}

fn screen(
    model: &Model,
    controls: &Controls,
    palette: Palette,
    (width, height): (u16, u16),
) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let table = arranged(model, controls);
    let scene = Scene { model, controls, table: &table, palette };
    terminal.draw(|frame| draw(scene, frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for line in buffer.content().chunks(buffer.area.width.into()) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text += &format!("{}\n", line.trim_end());
    }
    text
}

/// Compares with the picture of this name.
fn looks_like(name: &str, shown: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/top/tests").join(name);
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, shown).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(shown == wanted, "{name} has now, and UPDATE=1 keeps it:\n{shown}\nand had\n{wanted}");
}

#[test]
fn each_view_at_80_by_24_and_at_40_by_12() {
    let model = model();
    for view in View::ALL {
        let controls = controls(view);
        for size in [(80, 24), (40, 12)] {
            let shown = text(&screen(&model, &controls, FULL, size));
            let (width, height) = size;
            looks_like(&format!("{}-{width}x{height}.txt", view.title().to_lowercase()), &shown);
        }
    }
}

#[test]
fn a_large_screen_has_more_columns_and_rates_over_time() {
    let shown = text(&screen(&model(), &controls(View::Tunnels), FULL, (160, 40)));
    looks_like("tunnels-160x40.txt", &shown);
    for title in ["OUT p/s", "REQID", "in, at most"] {
        assert!(shown.contains(title), "{title}");
    }
}

#[test]
fn a_screen_that_is_too_small_says_so() {
    for size in [(39, 12), (40, 9), (20, 4), (3, 1), (1, 1)] {
        let shown = text(&screen(&model(), &controls(View::Tunnels), FULL, size));
        assert_eq!(shown.contains("small"), size.0 >= 20, "{size:?}: {shown}");
    }
}

#[test]
fn every_size_can_be_drawn() {
    let (model, mut controls) = (model(), controls(View::Tunnels));
    for mode in [Mode::Normal, Mode::Filter, Mode::Help] {
        controls.mode = mode;
        for width in (1..130).step_by(7) {
            for height in (1..50).step_by(3) {
                screen(&model, &controls, FULL, (width, height));
            }
        }
    }
}

#[test]
fn help_names_all_keys() {
    let mut controls = controls(View::Tunnels);
    controls.mode = Mode::Help;
    looks_like("help-80x24.txt", &text(&screen(&model(), &controls, FULL, (80, 24))));
}

#[test]
fn a_gateway_that_is_gone_is_said_above_what_was_known() {
    let mut model = model();
    model.take(Err("no uxfrm runs\x1b[2J here".to_owned()));
    assert!(matches!(model.connection, Connection::Gone(_)));
    let shown = text(&screen(&model, &controls(View::Tunnels), FULL, (80, 24)));
    assert!(shown.contains("GONE") && shown.contains("192.0.2.3"), "{shown}");
    assert!(shown.contains("no gateway answers: no uxfrm runs\\u{1b}[2J here; trying"), "{shown}");
    let row = shown.lines().find(|line| line.contains("192.0.2.2 ")).unwrap();
    assert!(!row.contains("10.0M"), "no rates of what was: {row}");
    let mut never = Model::new();
    let shown = text(&screen(&never, &controls(View::Tunnels), FULL, (80, 24)));
    assert!(shown.contains("asking the gateway"), "{shown}");
    never.take(Err("no uxfrm runs".to_owned()));
    let shown = text(&screen(&never, &controls(View::Drops), FULL, (80, 24)));
    assert!(shown.contains("waiting for a gateway"), "{shown}");
}

#[test]
fn policies_that_are_held_are_counted_beside_tunnels() {
    let (_, mut now) = fixture::pair();
    now.status.plain.held = 2;
    (now.status.totals, now.status.tunnels) = (Default::default(), Vec::new());
    let mut model = Model::new();
    model.take(Ok(Box::new(now)));
    let shown = text(&screen(&model, &controls(View::Tunnels), FULL, (80, 24)));
    assert!(shown.contains("\n0 tunnels; 2 policies held"), "{shown}");
}

#[test]
fn the_arrow_of_the_order_hides_no_letter_of_a_title() {
    let (model, mut controls) = (model(), controls(View::Tunnels));
    for (column, title) in [(0, "HEALTH▲"), (1, "PEER▲"), (3, "▲IN b/s"), (7, "▲DROP/s")] {
        controls.sort(Order::ascending(column));
        let shown = text(&screen(&model, &controls, FULL, (80, 24)));
        assert!(shown.contains(title), "{title}: {shown}");
    }
}

#[test]
fn filter_and_pause_are_said() {
    let (model, mut controls) = (model(), controls(View::Tunnels));
    controls.mode = Mode::Filter;
    controls.filter = "one-way".to_owned();
    controls.motion = Motion::Paused;
    let shown = text(&screen(&model, &controls, FULL, (80, 24)));
    assert!(shown.contains("filter: one-way_") && shown.contains("PAUSED"), "{shown}");
    assert!(shown.contains("192.0.2.4") && !shown.contains("192.0.2.3"), "{shown}");
    controls.filter = "nothing of this".to_owned();
    let shown = text(&screen(&model, &controls, FULL, (80, 24)));
    assert!(shown.contains("nothing has these words"), "{shown}");
}

#[test]
fn without_colours_the_selected_row_is_seen_all_the_same() {
    for (palette, are_coloured) in [(ASCII, false), (FULL, true)] {
        let shown = screen(&model(), &controls(View::Tunnels), palette, (80, 24));
        let cells = shown.content();
        assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset), are_coloured);
        assert!(cells.iter().all(|cell| cell.bg == Color::Reset), "as on any background");
        let first = &cells[4 * 80];
        assert!(first.modifier.contains(Modifier::REVERSED), "{first:?}");
    }
    for view in View::ALL {
        let shown = text(&screen(&model(), &controls(view), ASCII, (80, 40)));
        assert!(shown.is_ascii(), "{shown}");
    }
}

#[test]
fn a_printed_frame_has_every_row_and_no_keys() {
    let (model, controls) = (model(), controls(View::Drops));
    let table = arranged(&model, &controls);
    let scene = Scene { model: &model, controls: &controls, table: &table, palette: ASCII };
    looks_like("drops-once.txt", &frame(scene, 80));
    let mut many = table.clone();
    many.rows = (0..1000).map(|_| table.rows[0].clone()).collect();
    let text = frame(Scene { table: &many, ..scene }, 200);
    assert_eq!(text.matches("in_no_state").count(), 1000);
}

#[test]
fn a_column_is_sorted_by_its_title() {
    let options = |sort: &str| TopOptions {
        filter: None,
        view: View::Tunnels,
        sort: Some(sort.to_owned()),
        delay: 1.0,
        once: true,
        namespace: NamespaceOptions { netns: None },
    };
    assert_eq!(order(&options("in b/s"), "in b/s").unwrap(), Order::descending(3));
    assert_eq!(order(&options("peer"), "peer").unwrap(), Order::ascending(1));
    let error = order(&options("x"), "x").unwrap_err().to_string();
    assert!(error.contains("there is no column \"x\": HEALTH, PEER"), "{error}");
}
