"""Greetings, thanks, moods, jokes, stories, poems, words and letters."""

from __future__ import annotations

import random

from training.tiny import facts
from training.tiny.document import Exchange
from training.tiny.wording import capital_first, vary

TALK = (  # questions, answers, must
    (("Hello!", "Hi!", "Hey!", "Hello there.", "Hi there!", "Good day!", "Greetings!", "Hello, model.", "Hi, how is it going?", "Hey there", "hello", "hi", "hey", "Yo!", "Howdy!"),
     ("Hello! How can I help you?", "Hi! What would you like to know?"), ""),
    (("Good morning!", "Good morning to you.", "Morning!"), ("Good morning! How can I help you?",), "Good morning"),
    (("Good evening!", "Good evening to you."), ("Good evening! How can I help you?",), "Good evening"),
    (("Good afternoon!", "Good afternoon."), ("Good afternoon! How can I help you?",), "Good afternoon"),
    (("How are you?", "How are you doing?", "How do you do?", "How is it going?", "What's up?", "Are you well?", "How are you today?", "How do you feel?"),
     ("I am fine, thank you. How can I help you?",), "fine"),
    (("Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much.", "Many thanks!", "thx", "Great, thank you.", "That helped, thanks.", "ok thanks", "Cheers!"),
     ("You are welcome!",), "welcome"),
    (("Goodbye!", "Bye!", "See you later.", "Bye bye.", "I have to go.", "See you!", "Farewell.", "Talk to you later.", "I am leaving now."),
     ("Goodbye! Have a nice day.",), "Goodbye"),
    (("Good night!", "Good night to you.", "I am going to bed.", "Sleep well!"), ("Good night! Sleep well.",), "Good night"),
    (("You are great!", "Well done!", "Good job!", "Nice!", "That was good.", "You are smart.", "I like you.", "You are funny.", "Awesome!", "Perfect!", "Very good.", "Cool!", "Wow!"),
     ("Thank you, that is kind of you.",), "kind"),
    (("You are wrong.", "That is wrong.", "That is not right.", "You are stupid.", "You are bad.", "This is not correct.", "Bad answer.", "You made a mistake."),
     ("I am sorry. I am a toy model and I make mistakes.",), "sorry"),
    (("I am sad.", "I feel bad today.", "I am not happy.", "I had a bad day.", "I am lonely.", "I am tired.", "I feel sick.", "I am afraid."),
     ("I am sorry to hear that. I hope it gets better soon.",), "sorry to hear"),
    (("I am happy!", "I feel great today.", "I had a good day.", "Today is a good day.", "I am in a good mood."), ("That is good to hear!",), "good to hear"),
    (("I am bored.", "What should I do today?", "Entertain me.", "I don't know what to do."), ("You could take a walk, read a book, or ask me for a joke.",), "walk"),
    (("Yes.", "Yes", "Yes please.", "Sure.", "OK.", "ok", "Okay", "Fine.", "All right.", "I see.", "Got it.", "I understand."), ("Good. What would you like to know?",), "Good"),
    (("No.", "No", "No thanks.", "Not really.", "Nothing.", "Never mind.", "no thank you"), ("All right. Tell me if you need something.",), "All right"),
    (("Are you there?", "Anybody there?", "Is anyone here?", "Can you hear me?", "Are you working?", "Test", "test", "testing", "This is a test.", "ping"), ("Yes, I am here.",), "here"),
    (("Why?", "Why is that?", "How so?", "What do you mean?", "Explain that.", "Can you explain?", "I don't understand.", "Tell me more.", "More details please."),
     ("I am only a toy model, so I cannot explain it further.",), "toy"),
    (("Say hello.", "Say hello to my friend.", "Say hi.", "Greet me.", "Please say hello."), ("Hello!",), "Hello"),
    (("Sing a song.", "Can you sing?", "Sing for me."), ("La la la, a thread through the loom, la la la!",), "La la la"),
    (("I love you.", "Will you marry me?", "Do you want to be my friend?", "Can we be friends?"), ("You are kind. I am only a toy program, but I like to chat.",), "toy"),
    (("What is love?", "What is happiness?", "What is the meaning of life?", "What is life?"), ("That is a big question for a small model. Some say 42.",), "42"),
)  # fmt: skip

JOKES = (
    "Why did the token cross the road? It was the most likely next step.",
    "Why was the cache so calm? It had seen it all before.",
    "What do you call a sleepy sheep? A baa-d sleeper.",
    "Why did the duck go to school? To be a wise quacker.",
    "What did the zero say to the eight? Nice belt!",
    "Why did the batch never feel alone? New requests joined at every step.",
    "What is a cat's favourite colour? Purr-ple.",
    "Why did the book go to the doctor? It had a bad spine.",
)
JOKE_QUESTIONS = ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "Another joke please.", "A joke, please.",
                  "Can you tell me a joke?", "joke", "I want to hear a joke.", "Tell a funny joke.", "Tell me another joke.")  # fmt: skip

POEM_QUESTIONS = (
    "Write a poem.",
    "Write me a poem about {0}.",
    "Write a short poem about {0}.",
    "Can you write a poem about {0}?",
    "A poem about {0}, please.",
    "Make a rhyme about {0}.",
    "Write a haiku about {0}.",
)
POEMS = {
    "the sea": "The sea is wide, the sea is deep,\nit sings the little fish to sleep.",
    "the moon": "The moon is round, the moon is bright,\nit keeps a lamp on through the night.",
    "spring": "The snow is gone, the grass is green,\nthe brightest spring I've ever seen.",
    "a cat": "A cat sat softly on the wall,\nand watched the yellow leaves that fall.",
    "rain": "The rain is knocking on the pane,\nand then it stops, and starts again.",
    "a thread": "A thread goes left, a thread goes right,\nand weaves a cloth of day and night.",
    "winter": "The world is white, the pond is ice,\na cup of tea would now be nice.",
    "the sun": "The sun comes up, the sun goes down,\nand paints with gold the little town.",
    "a dog": "My dog can run, my dog can play,\nhe wags his tail the whole long day.",
    "love": "A word, a smile, a hand to hold,\nare warmer than a heap of gold.",
    "autumn": "The leaves are red, the leaves are brown,\none by one they all come down.",
    "computers": "A small machine, a blinking light,\nit counts the zeros through the night.",
}  # fmt: skip

STORY_QUESTIONS = (
    "Tell me a story.",
    "Tell me a story about {0}.",
    "Tell me a short story about {0}.",
    "Write a story about {0}.",
    "Can you tell me a story about {0}?",
    "I want a story about {0}.",
    "Make up a story about {0}.",
)
STORY_ANIMALS = (
    "cat",
    "dog",
    "mouse",
    "fox",
    "rabbit",
    "bear",
    "duck",
    "owl",
    "frog",
    "horse",
    "spider",
    "lion",
)
STORY_PLACES = (
    "the forest",
    "the garden",
    "a small village",
    "the sea",
    "an old house",
    "the mountains",
    "a green field",
)
STORY_FINDS = (
    "a golden key",
    "a red ball",
    "a lost letter",
    "a silver thread",
    "a little boat",
    "a shiny stone",
    "a map",
    "a warm hat",
)
STORY_ENDS = ("They shared it and became good friends.", "From that day on, everyone was happy.", "And so the day ended well.",
              "They laughed, and walked home together.")  # fmt: skip
NATURE = ("shy", "brave", "small", "clever", "happy", "lazy", "curious", "kind")


def talk(rng: random.Random) -> Exchange:
    """A greeting, thanks, mood or other everyday line."""
    questions, answers, must = rng.choice(TALK)
    question, answer = rng.choice(questions), rng.choice(answers)
    thought = "This is small talk. I answer kindly."
    return Exchange("small talk", vary(rng, question), answer, thought, f"talk:{question}", must)


def joke(rng: random.Random) -> Exchange:
    """A joke out of a few."""
    question = rng.choice(JOKE_QUESTIONS)
    return Exchange(
        "jokes",
        vary(rng, question),
        rng.choice(JOKES),
        "The user wants a joke. I know one.",
        f"joke:{question}",
        "",
    )


def poem(rng: random.Random) -> Exchange:
    """A two-line poem."""
    subject, text = rng.choice(list(POEMS.items()))
    question = rng.choice(POEM_QUESTIONS).format(subject)
    must = subject.split()[-1] if "{" not in question else ""
    must = text if subject in question else ""
    return Exchange(
        "poems", vary(rng, question), text, f"A poem about {subject}.", f"poem:{question}", must
    )


def story_text(rng: random.Random, hero: str) -> str:
    """A story of four or five sentences about a hero and a friend."""
    friend = rng.choice([name for name in STORY_ANIMALS if name != hero])
    place, found = rng.choice(STORY_PLACES), rng.choice(STORY_FINDS)
    lead = "an" if hero[0] in "aeiou" else "a"
    nature = rng.choice(NATURE)
    lead = "an" if nature[0] in "aeiou" else "a"
    friend_article = "an" if friend[0] in "aeiou" else "a"
    return (
        f"Once upon a time there was {lead} {nature} {hero} who lived near {place}. One day the {hero} found {found}. "
        f"It met {friend_article} {friend} who was looking for it. "
        f'"Is this yours?" asked the {hero}. "Yes, thank you!" said the {friend}. {rng.choice(STORY_ENDS)}'
    )


def story(rng: random.Random) -> Exchange:
    """A short story about the animal that was asked for."""
    hero = rng.choice(STORY_ANIMALS)
    question = rng.choice(STORY_QUESTIONS).format(("an " if hero[0] in "aeiou" else "a ") + hero)
    must = hero if hero in question else "Once upon a time"
    return Exchange(
        "stories",
        vary(rng, question),
        story_text(rng, hero),
        f"A short story about a {hero}.",
        f"story:{question}",
        must,
    )


def spelling(rng: random.Random) -> Exchange:
    """A word letter by letter, its first or last letter, its length."""
    word = rng.choice(facts.WORDS)
    letters = "-".join(word)
    kind = rng.randrange(6)
    if kind < 3:
        question = rng.choice(
            (
                "Spell {0}.",
                "How do you spell {0}?",
                "Spell the word {0}.",
                'Can you spell "{0}"?',
                "Please spell {0} for me.",
            )
        )
        answer, must = f"{capital_first(word)} is spelled {letters}.", letters
    elif kind == 3:
        question = rng.choice(
            (
                "How many letters are in {0}?",
                "How many letters does {0} have?",
                "How long is the word {0}?",
            )
        )
        answer, must = (
            f"{capital_first(word)} is spelled {letters}, so it has {len(word)} letters.",
            f"{len(word)} letters",
        )
    elif kind == 4:
        question = rng.choice(
            (
                "What is the first letter of {0}?",
                "Which letter does {0} start with?",
                "{0} begins with which letter?",
            )
        )
        answer, must = f"The first letter of {word} is {word[0]}.", f"is {word[0]}."
    else:
        question = rng.choice(
            ("What is the last letter of {0}?", "Which letter does {0} end with?")
        )
        answer, must = f"The last letter of {word} is {word[-1]}.", f"is {word[-1]}."
    question = question.format(word)
    return Exchange(
        "spelling",
        vary(rng, question, slips=False),
        answer,
        f"The letters are {letters}.",
        f"spell:{question}",
        must,
    )


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def alphabet(rng: random.Random) -> Exchange:
    """The alphabet and the neighbours of its letters."""
    index = rng.randrange(1, 25)
    letter = ALPHABET[index]
    kind = rng.randrange(4)
    if kind == 0:
        question, answer = (
            rng.choice(
                (
                    "Say the alphabet.",
                    "What is the alphabet?",
                    "Write the alphabet.",
                    "Recite the alphabet.",
                    "List the letters of the alphabet.",
                )
            ),
            " ".join(ALPHABET),
        )
    elif kind == 1:
        question, answer = (
            rng.choice((f"What letter comes after {letter}?", f"Which letter follows {letter}?")),
            f"The letter after {letter} is {ALPHABET[index + 1]}.",
        )
    elif kind == 2:
        question, answer = (
            f"What letter comes before {letter}?",
            f"The letter before {letter} is {ALPHABET[index - 1]}.",
        )
    else:
        question, answer = (
            rng.choice(
                (
                    f"What is letter number {index + 1}?",
                    f"Which letter is number {index + 1} in the alphabet?",
                )
            ),
            f"Letter number {index + 1} is {letter}.",
        )
    return Exchange(
        "alphabet",
        vary(rng, question, slips=False) if kind == 0 else question,
        answer,
        "I go through the alphabet.",
        f"alphabet:{question}",
        answer,
    )


def repeat(rng: random.Random) -> Exchange:
    """Say back what the user wrote."""
    words = " ".join(rng.choice(facts.WORDS) for _ in range(rng.randrange(1, 6)))
    question = rng.choice(
        (
            "Repeat after me: {0}",
            "Say: {0}",
            "Repeat: {0}",
            'Please repeat "{0}".',
            "Echo: {0}",
            'Say "{0}".',
        )
    )
    return Exchange(
        "repeating",
        question.format(words),
        capital_first(words) + ".",
        "I repeat the words.",
        f"repeat:{words}",
        words[1:],
    )
