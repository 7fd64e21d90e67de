//! `uxfrm top`: what the gateway of this network namespace does, live.
//!
//! ```text
//!   gateway ─► source (thread): samples ─► model: rates, rows ─┐
//!   terminal ─► controls: view, order, filter ─────────────────┴─► draw ─► screen
//! ```
//!
//! Only [`source`] and [`screen`] do I/O. All text of the gateway is escaped where it becomes a
//! cell or a line ([`text::escaped`]).

mod controls;
mod draw;
#[cfg(test)]
mod fixture;
mod model;
mod sample;
mod screen;
mod source;
mod table;
pub(crate) mod text;
pub(crate) mod view;

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use ratatui::{buffer::Buffer, layout::Rect};

use self::{
    controls::{Controls, Motion, Request},
    draw::{Characters, Colours, Palette, Scene, page},
    model::Model,
    sample::Sampler,
    screen::{Input, Screen},
    source::Source,
    table::{Order, Table},
};
use crate::{arguments::TopOptions, environment, exit_code::WrongUsage};

/// The longest wait for a key before new samples and signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// By then each worker has told twice what it did: it does so about once a second.
const PUBLISHED: Duration = Duration::from_secs(3);

/// Columns of a frame that is printed.
const WIDTH: u16 = 80;

/// Added to a signal's number where that ended it, as shells do.
const SIGNALLED: u8 = 128;

/// Shows it until the user has seen enough, or prints one frame.
pub(crate) fn execute(options: &TopOptions) -> anyhow::Result<ExitCode> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    let filter = options.filter.clone().unwrap_or_default();
    let interval = Duration::from_secs_f64(options.delay);
    let mut controls = Controls::new(options.view, filter, interval);
    if let Some(name) = &options.sort {
        controls.sort(order(options, name)?);
    }
    if options.once {
        return once(&controls).map(|()| ExitCode::SUCCESS);
    }
    live(controls)
}

/// The order that a column's title asks for.
fn order(options: &TopOptions, name: &str) -> anyhow::Result<Order> {
    let columns = options.view.columns();
    let wanted = columns.iter().position(|column| column.title.eq_ignore_ascii_case(name));
    let Some(column) = wanted else {
        let titles: Vec<_> = columns.iter().map(|column| column.title).collect();
        let says = format!("there is no column {name:?}: {}", titles.join(", "));
        anyhow::bail!(WrongUsage(says));
    };
    Ok(match columns[column].align {
        table::Align::Left => Order::ascending(column),
        table::Align::Right => Order::descending(column),
    })
}

fn live(mut controls: Controls) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::take(screen::block_signals()?)?;
    let mut asked = controls.question();
    let source = Source::start(asked)?;
    let (mut model, palette) = (Model::new(), screen::palette());
    let mut table = arranged(&model, &controls);
    screen.draw(Scene { model: &model, controls: &controls, table: &table, palette })?;
    loop {
        let input = screen.input(TICK)?;
        let mut is_changed = input.is_some();
        match input {
            Some(Input::Ended(signal)) => {
                return Ok(ExitCode::from(SIGNALLED + u8::try_from(signal as i32)?));
            }
            Some(Input::Key(key)) => {
                let rows = usize::from(page(screen.height()));
                match controls.press(key, &table, rows) {
                    Request::Quit => return Ok(ExitCode::SUCCESS),
                    Request::Suspend => screen.suspend()?,
                    Request::Redraw => screen.clear()?,
                    Request::None => {}
                }
            }
            Some(Input::Resized) | None => {}
        }
        if controls.question() != asked {
            asked = controls.question();
            source.ask(asked);
        }
        while let Some(reading) = source.next()? {
            if controls.motion == Motion::Live {
                model.take(reading);
                is_changed = true;
            }
        }
        if is_changed {
            table = arranged(&model, &controls);
            screen.draw(Scene { model: &model, controls: &controls, table: &table, palette })?;
        }
    }
}

/// What the view shows now.
fn arranged(model: &Model, controls: &Controls) -> Table {
    let empty =
        || Table { columns: controls.view.columns(), rows: Vec::new(), empty: "", note: None };
    let table = model.interval().map(|interval| controls.view.table(interval));
    controls.arrange(table.unwrap_or_else(empty))
}

/// Prints one frame of two samples, high enough for all rows.
fn once(controls: &Controls) -> anyhow::Result<()> {
    let model = sampled(controls)?;
    let table = arranged(&model, controls);
    let palette = Palette { colours: Colours::None, characters: Characters::Ascii };
    let scene = Scene { model: &model, controls, table: &table, palette };
    let columns = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let text = frame(scene, columns.unwrap_or(WIDTH));
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Two samples, the interval apart; longer, if the workers have not yet told twice what they did.
fn sampled(controls: &Controls) -> anyhow::Result<Model> {
    let (peer, mut wait) = (controls.question().peer, controls.interval());
    let mut sampler = Sampler::default();
    let (first, begin) = (Box::new(sampler.read(peer)?), Instant::now());
    loop {
        thread::sleep(wait);
        let mut model = Model::new();
        model.take(Ok(first.clone()));
        model.take(Ok(Box::new(sampler.read(peer)?)));
        if model.has_rates() || begin.elapsed() >= PUBLISHED {
            return Ok(model);
        }
        wait = TICK;
    }
}

/// A frame as text.
fn frame(scene: Scene<'_>, width: u16) -> String {
    let rows = u16::try_from(scene.table.rows.len().max(1)).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, width.clamp(draw::LEAST.0, 500), rows.saturating_add(3));
    let mut buffer = Buffer::empty(area);
    draw::list(scene, area, &mut buffer);
    let mut text = String::new();
    for line in buffer.content().chunks(area.width.into()) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
