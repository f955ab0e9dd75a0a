// Names of LaTeX's symbols, each with its character; and how letters look in its alphabets.

const pairs = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => {
  const at = pair.lastIndexOf("=", pair.length - 2);
  return [pair.slice(0, at), pair.slice(at + 1)];
}));

/** Identifiers: letters and what stands like one. */
export const LETTERS = pairs(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ
  lambda=λ mu=μ nu=ν xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ
  omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ ell=ℓ
  hbar=ℏ Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ wp=℘ top=⊤ bot=⊥ angle=∠ triangle=△ square=□ blacksquare=■
  dots=… ldots=… cdots=⋯ vdots=⋮ ddots=⋱ prime=′ degree=° checkmark=✓ complement=∁`);

/** Operators and relations. */
export const OPERATORS = pairs(`times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=• oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙
  leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ ll=≪ gg=≫ equiv=≡ approx=≈ cong=≅ sim=∼ simeq=≃ propto=∝ doteq=≐ prec=≺ succ=≻ preceq=⪯ succeq=⪰
  in=∈ notin=∉ ni=∋ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ cup=∪ cap=∩ setminus=∖ land=∧ wedge=∧ lor=∨ vee=∨ neg=¬ lnot=¬
  forall=∀ exists=∃ nexists=∄ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺
  implies=⟹ impliedby=⟸ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ mapsto=↦ hookrightarrow=↪ uparrow=↑ downarrow=↓ updownarrow=↕ nearrow=↗
  searrow=↘ rightleftharpoons=⇌ mid=∣ nmid=∤ parallel=∥ perp=⊥ therefore=∴ because=∵ vdash=⊢ dashv=⊣ models=⊨ colon=: coloneqq=≔
  lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ langle=⟨ rangle=⟩ lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ |=‖ lbrace={ rbrace=} lbrack=[ rbrack=]
  {={ }=} %=% $=$ &=& #=# _=_ backslash=\\ dagger=† ddagger=‡ amalg=⨿ wr=≀ bowtie=⋈ asymp=≍ lesssim=≲ gtrsim=≳ triangleq=≜ leqslant=⩽ geqslant=⩾`);

/** Large operators; those that are true have their limits above and below. */
export const LARGE = { sum: ["∑", true], prod: ["∏", true], coprod: ["∐", true], bigcup: ["⋃", true], bigcap: ["⋂", true],
  bigoplus: ["⨁", true], bigotimes: ["⨂", true], bigvee: ["⋁", true], bigwedge: ["⋀", true], int: ["∫", false], iint: ["∬", false],
  iiint: ["∭", false], oint: ["∮", false] };

/** Names in upright letters; those that are true have their limits below. */
export const FUNCTIONS = Object.fromEntries([
  ..."arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh tan tanh".split(" ").map((name) => [name, false]),
  ..."det gcd inf lim liminf limsup max min Pr sup argmax argmin".split(" ").map((name) => [name, true]),
]);

export const ACCENTS = { hat: "^", widehat: "^", check: "ˇ", tilde: "~", widetilde: "~", acute: "´", grave: "`", dot: "˙", ddot: "¨",
  breve: "˘", bar: "¯", overline: "‾", vec: "→", overrightarrow: "→", overleftarrow: "←", overbrace: "⏞" };
export const UNDER = { underline: "_", underbrace: "⏟" };
export const SPACES = { ",": 0.167, ":": 0.222, ">": 0.222, ";": 0.278, " ": 0.25, "!": -0.167, quad: 1, qquad: 2, enspace: 0.5, thinspace: 0.167 };
export const OPEN_CLOSE = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", matrix: ["", ""], smallmatrix: ["", ""],
  cases: ["{", ""], rcases: ["", "}"], aligned: ["", ""], align: ["", ""], "align*": ["", ""], split: ["", ""], gathered: ["", ""], gather: ["", ""],
  "gather*": ["", ""], equation: ["", ""], "equation*": ["", ""], array: ["", ""], eqnarray: ["", ""] };

// Where the letters of an alphabet begin among the mathematical ones, and those that had a place before.
const ALPHABETS = {
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  mathcal: [0x1d49c, 0x1d4b6, null, { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }],
  mathfrak: [0x1d504, 0x1d51e, null, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, {}],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2, {}],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6, {}],
};
export const ALPHABET_NAMES = { ...Object.fromEntries(Object.keys(ALPHABETS).map((name) => [name, name])), mathscr: "mathcal",
  boldsymbol: "mathbf", bm: "mathbf", Bbb: "mathbb", frak: "mathfrak", cal: "mathcal", bf: "mathbf" };

/** A text in the letters of an alphabet. */
export function inAlphabet(text, alphabet) {
  const [upper, lower, digits, others] = ALPHABETS[alphabet];
  return [...text].map((char) => {
    if (others[char]) return others[char];
    if (/[A-Z]/.test(char)) return String.fromCodePoint(upper + char.codePointAt(0) - 65);
    if (/[a-z]/.test(char)) return String.fromCodePoint(lower + char.codePointAt(0) - 97);
    return digits && /\d/.test(char) ? String.fromCodePoint(digits + Number(char)) : char;
  }).join("");
}
