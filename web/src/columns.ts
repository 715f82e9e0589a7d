// Text of the page -> typed arrays: the other half of snapconv/writers/html/column_encoding.py.

/** Of one column: how many numbers, of how many bytes each, and what they are. */
export type Entry = readonly [n: number, width: number, kind: number];

const PLAIN = 0;
const DIFFERENCES = 1;


const TWO_32 = 4294967296;

export function bytesOfBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function inflate(text: string): Promise<Uint8Array> {
  const stream = new Blob([bytesOfBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function inflateValues(text: string): Promise<unknown> {
  return JSON.parse(new TextDecoder().decode(await inflate(text)));
}

/** Write a column's numbers into `into`, which decides their type. */
export function fillColumn<T extends Int32Array | Float64Array | Uint8Array>(
  planes: Uint8Array,
  [n, width, kind]: Entry,
  into: T,
): T {
  let last = 0;
  for (let i = 0; i < n; i++) {
    let low = planes[i];
    if (width > 1) low += planes[n + i] * 256;
    if (width > 2) low += planes[2 * n + i] * 65536 + planes[3 * n + i] * 16777216;
    let value = low;
    if (width > 4) {
      const high =
        planes[4 * n + i] + planes[5 * n + i] * 256 + planes[6 * n + i] * 65536 + planes[7 * n + i] * 16777216;
      value += high * TWO_32;
    }
    if (kind !== PLAIN) value = low % 2 ? -(value + 1) / 2 : value / 2; // the sign is in the lowest bit
    if (kind === DIFFERENCES) value = last += value;
    into[i] = value;
  }
  return into;
}
