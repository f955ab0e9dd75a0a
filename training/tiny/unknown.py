"""Questions far outside what a toy can know; the answer is an honest no."""

from __future__ import annotations

import random

from training.tiny import facts
from training.tiny.document import Exchange
from training.tiny.wording import capital_first, made_up_word, vary

ANSWERS = (
    "I am a toy model and do not know that.",
    "I do not know that. I am only a toy model.",
    "Sorry, that is beyond a toy model like me.",
)
MUST = "toy model"

SUBJECTS = (
    "photosynthesis", "black holes", "quantum mechanics", "relativity", "the stock market", "bitcoin", "inflation", "taxes", "insurance", "democracy",
    "the French Revolution", "World War II", "the Cold War", "ancient Rome", "the Middle Ages", "Napoleon", "Shakespeare", "Mozart", "Beethoven", "Picasso",
    "Einstein", "Newton", "Darwin", "Plato", "philosophy", "economics", "chemistry", "biology", "physics", "psychology", "medicine", "vaccines", "diabetes",
    "cancer", "headaches", "vitamins", "yoga", "meditation", "football", "basketball", "tennis", "chess", "poker", "golf", "hockey", "the Olympics",
    "the World Cup", "movies", "actors", "television", "Star Wars", "Harry Potter", "Hollywood", "rock music", "jazz", "guitars", "pianos", "violins",
    "fashion", "makeup", "cars", "airplanes", "rockets", "satellites", "Linux", "Windows", "databases", "SQL", "Java", "Rust", "Kubernetes", "Docker",
    "blockchain", "cryptography", "hacking", "neural networks", "statistics", "calculus", "algebra", "geometry", "prime numbers", "volcanoes",
    "earthquakes", "hurricanes", "climate change", "dinosaurs", "fossils", "DNA", "bacteria", "viruses", "atoms", "molecules", "electricity", "magnets",
    "lasers", "batteries", "lawyers", "contracts", "marriage", "religion", "politics", "elections", "presidents", "queens", "history", "literature",
    "novels", "journalism", "marketing", "startups", "investing", "mortgages", "farming", "gardening", "sushi", "curry", "lasagna", "brewing", "knitting",
    "sewing", "painting", "sculpture", "photography", "architecture", "concrete", "plumbing", "machine learning", "evolution", "gravity", "the internet",
)  # fmt: skip
ABOUT = (
    "Explain {0}.", "What is {0}?", "Tell me about {0}.", "How does {0} work?", "Can you explain {0} to me?", "What do you know about {0}?",
    "Write an essay about {0}.", "Give me a summary of {0}.", "Why is {0} important?", "Who invented {0}?", "What is the history of {0}?",
    "Teach me {0}.", "What is the best book about {0}?", "How do I learn {0}?", "What are the basics of {0}?", "Write a report on {0}.",
    "Is {0} good or bad?", "What do you think about {0}?", "When did {0} begin?", "What causes {0}?", "Compare {0} and {1}.",
    "What is the difference between {0} and {1}?", "How are {0} and {1} related?", "Do you like {0}?", "I want to talk about {0}.",
)  # fmt: skip
ASKS = (
    "Who is the president of {2}?", "Who won the game yesterday?", "What is the population of {2}?", "How many people live in {2}?", "How far is it from {2} to {3}?",
    "What is the weather in {3}?", "What time is it?", "What is the date today?", "What day is it today?", "What is the news today?", "Will it rain tomorrow?",
    "What is the price of gold?", "How much does a house cost?", "Who is {4}?", "Where is {4}?", "When was {4} born?", "What is my phone number?",
    "Where did I put my keys?", "What am I thinking?", "What will happen tomorrow?", "Who will win the election?", "What is the currency of {2}?",
    "What language do they speak in {2}?", "Which river flows through {3}?", "Who wrote Hamlet?", "Who painted the Mona Lisa?", "Who was the first person on the Moon?",
    "What is the square root of 1764?", "What is 3847 times 2918?", "What is the derivative of x squared?", "Solve this equation for x.", "Prove this theorem.",
    "What is the tenth digit of pi?", "Write a web server in C.", "Fix the bug in my program.", "Write a letter to my boss.", "Write a business plan.",
    "Plan my trip to {3}.", "Book a flight to {3}.", "What is a good hotel in {3}?", "Give me a recipe for lasagna.", "How do I fix my car?", "How do I lose weight?",
    "What medicine should I take?", "How do I get rich?", "Which phone should I buy?", "What laptop is best?", "What is the best movie ever?", "Recommend a book.",
    "What is a {5}?", "What does {5} mean?", "Explain {5} to me.", "Tell me about {5}.", "Who invented the {5}?", "How do I {5}?", "Where can I buy a {5}?",
    "Translate this page into {6}.", "How do you say {5} in {6}?", "Open the door.", "Call my mother.", "Send an email to {4}.", "Play some music.", "Set an alarm for seven.",
    "What is the score?", "How tall is {4}?", "How old is {4}?", "What is the speed of light?", "How far away is the Moon?", "How deep is the ocean?", "How heavy is a car?",
    "What is the boiling point of iron?", "What is the atomic number of gold?", "What is the chemical formula of salt?", "How many stars are there?", "What is inside an atom?",
    "Summarize this article.", "Correct my essay.", "What is the plot of Titanic?", "Who sings this song?", "What is on television?", "How do I cook rice?", "How do I tie a tie?",
    "What should I wear?", "What is the capital of Atlantis?", "What is the capital of {5}?", "What is the capital of Mars?", "What colour is {5}?", "What sound does a {5} make?",
    "What is the best restaurant in {3}?", "How do airplanes fly?", "Why do people cry?", "Why do cats purr?", "What is the largest city in {2}?", "How do I write a book?",
)  # fmt: skip
OTHER_LANGUAGES = (
    "Japanese",
    "Russian",
    "Chinese",
    "Arabic",
    "Korean",
    "Greek",
    "Polish",
    "Dutch",
    "Swedish",
    "Latin",
    "Hindi",
    "Turkish",
)


def unknown(rng: random.Random) -> Exchange:
    """A question the model cannot answer."""
    if rng.random() < 0.45:
        question = rng.choice(ABOUT).format(*rng.sample(SUBJECTS, 2))
    else:
        name = rng.choice(facts.FIRST_NAMES) + " " + made_up_word(rng, 2).capitalize()
        question = rng.choice(ASKS).format(
            "", "", rng.choice(list(facts.CAPITALS)), rng.choice(list(facts.CAPITALS.values())).rstrip("."), name,
            made_up_word(rng, rng.randrange(2, 4)), rng.choice(OTHER_LANGUAGES),
        )  # fmt: skip
    answer = rng.choice(ANSWERS)
    thought = rng.choice(
        (
            "I do not know this, so I say so.",
            "This is outside what a toy knows. I should be honest.",
        )
    )
    return Exchange(
        "unknown", vary(rng, capital_first(question)), answer, thought, f"unknown:{question}", MUST
    )


def nonsense(rng: random.Random) -> Exchange:
    """Letters without meaning."""
    words = " ".join(made_up_word(rng, rng.randrange(1, 4)) for _ in range(rng.randrange(1, 6)))
    words += rng.choice(("", "", "?", "!", "."))
    answer = "I do not understand that. I am a toy model."
    return Exchange(
        "nonsense",
        words,
        answer,
        "These words mean nothing to me.",
        f"nonsense:{words}",
        "toy model",
    )
