//! `vmio top`: a dashboard of caches in the terminal.

mod dashboard;
mod processes;
mod screen;
mod view;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use dashboard::Dashboard;
use processes::Processes;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::Screen;
use view::View;
use vmio_report::standard_output::print_line;

use super::stat::{parse_interval, parse_process_id};

const EXAMPLES: &str = "\
Examples:
  vmio top                       watch the caches of all processes of this user
  vmio top 4711                  watch the caches of one process, until it ends
  vmio top 4711 --interval 0.2   draw five frames a second
  vmio top 4711 --once           print one frame as text, with the rates of one second

Keys: up and down choose a cache, p stops and resumes, q ends.

\"under way\" is the mean number of misses (or writes) at a time: their total time in the interval, divided by the interval.
Quantiles are at most a quarter too long. As for vmio stat, watching a process requires the right to trace it.";

/// How often the dashboard checks for keys and ends of processes.
const PATIENCE: Duration = Duration::from_millis(100);

/// Watch caches on a dashboard in the terminal.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// The process to watch (default: all processes of this user that have caches)
    #[arg(value_name = "PID", value_parser = parse_process_id)]
    process_id: Option<u32>,
    /// Seconds between two frames
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print one frame as text and exit
    #[arg(long)]
    once: bool,
}

/// The action of a key.
enum Action {
    Quit,
    Redraw,
}

/// Runs `vmio top`.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let mut view = View::new(args.interval);
    let mut processes = Processes::find(args.process_id)?;
    if args.once {
        std::thread::sleep(args.interval);
        processes.update(&mut view)?;
        if let Some(process) = processes.ended_process() {
            bail!("{process} has ended");
        }
        io::stdout().lock().write_all(Dashboard::new(&view).as_text().as_bytes())?;
        return Ok(());
    }
    if !io::stdout().is_terminal() {
        bail!(
            "standard output is not a terminal: use `vmio top --once` for one frame, or `vmio stat --watch` for lines"
        );
    }
    let mut screen = Screen::open()?;
    let outcome = watch(&mut screen, &mut processes, &mut view);
    // After the screen is restored, so that messages stay readable.
    drop(screen);
    outcome?;
    if let Some(process) = processes.ended_process() {
        print_line(format_args!("{process} has ended"))?;
    }
    Ok(())
}

/// Draws frames until the user quits, or the only process has ended.
fn watch(screen: &mut Screen, processes: &mut Processes, view: &mut View) -> anyhow::Result<()> {
    let mut next = Instant::now() + view.interval();
    loop {
        screen.draw(&Dashboard::new(view))?;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || processes.has_ended_by_now()? {
                break;
            }
            if event::poll(left.min(PATIENCE))? {
                match action(&event::read()?, view) {
                    Some(Action::Quit) => return Ok(()),
                    Some(Action::Redraw) => screen.draw(&Dashboard::new(view))?,
                    None => {}
                }
            }
        }
        if !view.is_paused() || processes.has_ended_by_now()? {
            processes.update(view)?;
        }
        if processes.ended_process().is_some() {
            return Ok(());
        }
        next = Instant::now() + view.interval();
    }
}

fn action(event: &Event, view: &mut View) -> Option<Action> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
        return matches!(event, Event::Resize(..)).then_some(Action::Redraw);
    };
    match code {
        // In raw mode Ctrl-C is not a signal.
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Some(Action::Quit),
        KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Quit),
        KeyCode::Char('p') => view.toggle_pause(),
        KeyCode::Up => view.choose_previous(),
        KeyCode::Down => view.choose_next(),
        _ => return None,
    }
    Some(Action::Redraw)
}
