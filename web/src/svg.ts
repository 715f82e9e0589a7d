// A picture as SVG, and from that as PNG. Texts are escaped: in a file of their own they are markup.

export class Svg {
  private readonly parts: string[] = [];

  constructor(
    readonly width: number,
    readonly height: number,
    background: string,
  ) {
    this.rect(0, 0, width, height, background);
  }

  rect(x: number, y: number, width: number, height: number, fill: string, more = ""): void {
    this.parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" fill="${fill}"${more}/>`);
  }

  path(data: string, fill: string, stroke = "none", more = ""): void {
    this.parts.push(`<path d="${data}" fill="${fill}" stroke="${stroke}"${more}/>`);
  }

  text(x: number, y: number, text: string, fill: string, size = 11, anchor = "start"): void {
    this.parts.push(`<text x="${n(x)}" y="${n(y)}" fill="${fill}" font-size="${size}" text-anchor="${anchor}">${escape(text)}</text>`);
  }

  /** Put other pictures below each other into this one. */
  append(pictures: readonly Svg[]): void {
    let top = 0;
    for (const picture of pictures) {
      this.parts.push(`<g transform="translate(0 ${top})">${picture.parts.join("")}</g>`);
      top += picture.height;
    }
  }

  toString(): string {
    const { width, height } = this;
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="system-ui, sans-serif">${this.parts.join("")}</svg>\n`
    );
  }
}

export function n(value: number): string {
  return String(Math.round(value * 100) / 100);
}

/** As text of XML, without what XML cannot have at all. */
export function escape(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ud800-\udfff\ufffe\uffff]/gu, "\ufffd")
    .replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

export function cut(text: string, width: number, size = 11): string {
  const most = Math.floor(width / (size * 0.58));
  return text.length <= most ? text : most > 3 ? `${text.slice(0, most - 1)}…` : "";
}

export function save(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveSvg(name: string, svg: Svg): void {
  save(`${name}.svg`, new Blob([svg.toString()], { type: "image/svg+xml" }));
}

export async function savePng(name: string, svg: Svg): Promise<void> {
  const url = URL.createObjectURL(new Blob([svg.toString()], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = svg.width * 2;
    canvas.height = svg.height * 2;
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
    if (blob) save(`${name}.png`, blob);
  } finally {
    URL.revokeObjectURL(url);
  }
}
