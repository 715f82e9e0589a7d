// Events and iterations as the file numbers them. The page counts both from 0, as of a range of a file it has no others.

import { counted, formatCount } from "./format.ts";
import type { DeviceFacts } from "./model.ts";
import { NEVER } from "./rows.ts";

export function eventText({ first_event }: DeviceFacts, event: number): string {
  return formatCount(first_event + event);
}

/** A moment: after an event, or before all that the page has. */
export function momentText(facts: DeviceFacts, event: number): string {
  if (event >= 0) return `after event ${eventText(facts, event)}`;
  return facts.first_event ? `before event ${eventText(facts, 0)}` : "before the first event";
}

/** A moment, and how many events the file has. */
export function momentOfAll(facts: DeviceFacts, event: number): string {
  const text = momentText(facts, event);
  return event < 0 ? text : `${text} of ${formatCount(facts.n_file_events)}`;
}

/** The events of the page: all, or which of the file's. */
export function eventsOfPage(facts: DeviceFacts): string {
  const { n_events, n_file_events } = facts;
  if (n_events === n_file_events) return counted(n_events, "event");
  return `events ${eventText(facts, 0)} to ${eventText(facts, n_events - 1)} of ${formatCount(n_file_events)}`;
}

/** The events between which an allocation lives; of a range that ends before the file, the end is not the file's. */
export function lifeText(facts: DeviceFacts, alloc: number, freed: number): string {
  const from = alloc < 0 ? `from ${momentText(facts, -1)}` : `from event ${eventText(facts, alloc)}`;
  if (freed !== NEVER) return `${from} to event ${eventText(facts, freed)}`;
  const isCut = facts.first_event + facts.n_events < facts.n_file_events;
  return `${from} to ${isCut ? `after event ${eventText(facts, facts.n_events - 1)}` : "the end, never freed"}`;
}

export function iterationText({ first_iteration }: DeviceFacts, position: number): string {
  return `iteration ${first_iteration + position}`;
}
